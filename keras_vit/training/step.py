"""What one step computes, on every replica."""

import tensorflow as tf


def make_train_steps(strategy, model, optimizer, batch_size):
    """The function that trains.

    Args:
        strategy: the strategy in whose scope model and optimizer were made.
        model: a `keras.Model` from images to logits.
        optimizer: a built Keras optimizer.
        batch_size: examples of a batch, over all replicas.

    Returns:
        `train_steps(iterator, steps)`: takes `steps` (an int32 tensor) batches and returns float32 `(2,)`, the mean
        loss and the accuracy over them, and float32 `(steps, batch_size)`, the weights of their examples.
    """

    def replica_step(images, labels, weights):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
            # The global batch divides, so that the sum over replicas is the mean over the batch.
            loss = tf.reduce_sum(losses * weights) / batch_size
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)  # sums the gradients over replicas
        return tf.stack([loss, _correct(labels, logits, weights) / batch_size]), weights

    # Several steps a call: the loop stays in the graph.
    @tf.function
    def train_steps(iterator, steps):
        totals = tf.zeros(2)
        seen = tf.TensorArray(tf.float32, size=steps, element_shape=(batch_size,))
        for step in tf.range(steps):
            metrics, weights = strategy.run(replica_step, args=next(iterator))
            totals += strategy.reduce(tf.distribute.ReduceOp.SUM, metrics, axis=None)
            seen = seen.write(step, tf.concat(strategy.experimental_local_results(weights), 0))
        return totals / tf.cast(steps, tf.float32), seen.stack()

    return train_steps


def make_eval_step(strategy, model):
    """The function that evaluates one batch.

    Returns:
        `eval_step(images, labels, weights)`: float32 `(3,)`, the sums of losses, right answers and weights.
    """

    def replica_step(images, labels, weights):
        logits = model(images, training=False)
        losses = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
        return tf.stack([tf.reduce_sum(losses * weights), _correct(labels, logits, weights), tf.reduce_sum(weights)])

    @tf.function
    def eval_step(images, labels, weights):
        sums = strategy.run(replica_step, args=(images, labels, weights))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    return eval_step


def _correct(labels, logits, weights):
    right = tf.equal(tf.argmax(labels, -1), tf.argmax(logits, -1))
    return tf.reduce_sum(tf.cast(right, tf.float32) * weights)
