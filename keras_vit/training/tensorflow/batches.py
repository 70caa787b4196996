"""Distributes the batches of an `InputPipeline` over the hosts and replicas of a strategy, in
order."""


def distributed_batches(strategy, inputs, host_batches, parts=1):
    """Returns a distributed dataset in which `parts` consecutive elements make up a batch.

    `host_batches(num_hosts=..., host_index=...)` returns the batches of a host, as
    `inputs.train_batches` does.
    """

    def replica_batches(context):
        hosts = context.num_input_pipelines
        host_index = context.input_pipeline_id
        batches = host_batches(num_hosts=hosts, host_index=host_index)
        size = context.get_per_replica_batch_size(inputs.batch_size) // parts
        if size == inputs.batch_size // hosts:
            return batches
        return batches.rebatch(size, drop_remainder=True)

    return strategy.distribute_datasets_from_function(replica_batches)
