"""What one replica computes in a step: its part of the gradient, added up over micro-batches and replicas."""

import tensorflow as tf

from keras_vit.layers.dropout import StepSeeds, seed_scope
from keras_vit.optimizers import clip_by_global_norm


def make_replica_gradients(strategy, model, loss, *, batch_size, seed, accumulate_steps=1, clip_norm=0.0, xla=False):
    """The function that a replica runs first in a step; it changes nothing.

    Args:
        strategy: the strategy in whose scope the model was made.
        model: a `keras.Model` from images to logits.
        loss: from labels and logits, `(B, classes)`, to losses `(B,)`.
        batch_size: examples of a batch, over all replicas.
        seed: decides the masks of dropout, with the number of the step, of the replica and of the micro-batch.
        accumulate_steps: into how many micro-batches a replica divides its part of the batch.
        clip_norm: the largest global norm of a gradient; 0 for no clipping.
        xla: whether forward and backward pass are compiled with XLA. Not on a TPU, where everything is.

    Returns:
        `replica_gradients(step, images, labels, weights, scale=None)`: the clipped gradients, a list, and float32
        `(3,)`, the mean loss, the accuracy and the norm before clipping; all of the whole batch, the same on every
        replica. `scale` multiplies the loss on its way to the gradients, and is taken out of them.
    """
    variables = model.trainable_variables
    replica_size = batch_size // strategy.num_replicas_in_sync
    fold_in = tf.random.experimental.stateless_fold_in

    @tf.autograph.experimental.do_not_convert
    def of_micro_batch(images, labels, weights, key, scale):
        with tf.GradientTape() as tape:
            with seed_scope(StepSeeds(key)):
                logits = model(images, training=True)
            # The global batch divides, so that the sum over micro-batches and replicas is the mean over the batch.
            mean = tf.reduce_sum(loss(labels, logits) * weights) / batch_size
            scaled = mean if scale is None else mean * scale
        gradients = tape.gradient(scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return tf.stack([mean, correct(labels, logits, weights) / batch_size]), gradients

    if xla:
        of_micro_batch = tf.function(of_micro_batch, jit_compile=True, autograph=False)

    @tf.autograph.experimental.do_not_convert
    def replica_gradients(step, images, labels, weights, scale=None):
        context = tf.distribute.get_replica_context()
        # Several workers' iterators forget the size of the batch.
        images = tf.ensure_shape(images, (replica_size, *model.input_shape[1:]))
        labels = tf.ensure_shape(labels, (replica_size, *model.output_shape[1:]))
        weights = tf.ensure_shape(weights, (replica_size,))
        key = fold_in(tf.stack([tf.constant(seed, tf.int32), step]), context.replica_id_in_sync_group)
        if accumulate_steps == 1:
            metrics, gradients = of_micro_batch(images, labels, weights, fold_in(key, 0), scale)
        else:
            parts = [tf.reshape(x, (accumulate_steps, -1, *x.shape[1:])) for x in (images, labels, weights)]

            def add(i, metrics, gradients):
                more_metrics, more = of_micro_batch(*(part[i] for part in parts), fold_in(key, i), scale)
                return i + 1, metrics + more_metrics, [a + b for a, b in zip(gradients, more)]

            zeros = [tf.zeros(v.shape, v.dtype) for v in variables]
            _, metrics, gradients = tf.while_loop(
                lambda i, *_: i < accumulate_steps, add, (0, tf.zeros(2), zeros), parallel_iterations=1
            )
        *gradients, metrics = context.all_reduce(tf.distribute.ReduceOp.SUM, [*gradients, metrics])
        if scale is not None:
            gradients = [gradient / scale for gradient in gradients]
        gradients, norm = clip_by_global_norm(gradients, clip_norm)
        return gradients, tf.concat([metrics, norm[None]], 0)

    return replica_gradients


def correct(labels, logits, weights):
    """The sum of the weights of examples whose largest logit is that of the largest label: float32, a scalar."""
    right = tf.equal(tf.argmax(labels, -1), tf.argmax(logits, -1))
    return tf.reduce_sum(tf.cast(right, tf.float32) * weights)
