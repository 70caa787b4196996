"""Distributes the batches of an `InputPipeline` over the hosts and replicas of a strategy, in order."""


def train_batches(strategy, inputs, start_step=0):
    """Returns a distributed dataset of the training batches from step `start_step` on."""
    return _distributed(strategy, inputs, lambda **host: inputs.train_batches(start_step, **host))


def eval_batches(strategy, inputs, parts=1):
    """Returns a distributed dataset of the evaluation batches, each split into `parts` micro-batches."""
    return _distributed(strategy, inputs, inputs.eval_batches, parts)


def _distributed(strategy, inputs, host_batches, parts=1):
    def replica_batches(context):
        hosts, host_index = context.num_input_pipelines, context.input_pipeline_id
        batches = host_batches(num_hosts=hosts, host_index=host_index)
        size = context.get_per_replica_batch_size(inputs.batch_size) // parts
        return batches if size == inputs.batch_size // hosts else batches.rebatch(size, drop_remainder=True)

    return strategy.distribute_datasets_from_function(replica_batches)
