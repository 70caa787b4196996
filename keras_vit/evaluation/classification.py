"""The loss and the accuracy of a model on all examples of a split, exactly."""

import tensorflow as tf

from keras_vit.training.batches import eval_batches
from keras_vit.training.gradients import correct


def make_evaluate(strategy, model, loss, made):
    """The function that evaluates.

    Args:
        strategy: the strategy in whose scope the model was made.
        model: a `keras.Model` from images to logits.
        loss: from labels and logits, `(B, classes)`, to losses `(B,)`.
        made: a `data.InputPipeline`, whose test source is evaluated.

    Returns:
        `evaluate()`: the mean loss and the accuracy over all examples that can be read and have a label, floats. Sums
        are added up, never means, so that it does not matter how the examples fall into batches.
    """
    number = -(-made.test.num_examples // made.batch_size)

    @tf.autograph.experimental.do_not_convert
    def replica_sums(images, labels, weights):
        images = tf.ensure_shape(images, (None, *model.input_shape[1:]))
        logits = model(images, training=False)
        losses = loss(labels, logits)
        return tf.stack([tf.reduce_sum(losses * weights), correct(labels, logits, weights), tf.reduce_sum(weights)])

    @tf.function
    def sums(images, labels, weights):
        replica = strategy.run(replica_sums, args=(images, labels, weights))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, replica, axis=None)

    def evaluate():
        batches = iter(eval_batches(strategy, made))
        # In float64: float32 would stop counting single examples at 2^24.
        total = sum(sums(*next(batches)).numpy().astype("float64") for _ in range(number))
        loss, right, weight = total.tolist()
        return loss / weight, right / weight

    return evaluate
