"""Batches on the devices of a strategy."""

from keras_vit.training.strategy import hosts


def train_batches(strategy, made, start_step=0):
    """The training batches of a `data.InputPipeline`, from a step on, divided among hosts and replicas in order."""
    return _distributed(strategy, made, lambda **host: made.train_batches(start_step, **host))


def eval_batches(strategy, made):
    """The evaluation batches of a `data.InputPipeline`, divided among hosts and replicas in order."""
    return _distributed(strategy, made, made.eval_batches)


def one_batch(strategy, made, step):
    """What this process has of the training batch of one step, `(images, labels, weights)`."""
    count, index = hosts(strategy)
    return next(iter(made.train_batches(step, num_hosts=count, host_index=index)))


def _distributed(strategy, made, of_host):
    def batches(context):
        count, index = context.num_input_pipelines, context.input_pipeline_id
        own = of_host(num_hosts=count, host_index=index)
        size = context.get_per_replica_batch_size(made.batch_size)
        return own if size == made.batch_size // count else own.rebatch(size, drop_remainder=True)

    return strategy.distribute_datasets_from_function(batches)
