"""The gradients with which a diagnosis looks for what is not finite."""

import tensorflow as tf


def make_compute_gradients(model, task):
    """The function that `nonfinite.first_nonfinite_layer` asks for the gradients of a part of a batch."""

    def compute_gradients(piece):
        with tf.GradientTape() as tape:
            losses, _ = task.losses_and_metrics(model, piece, training=False)
            total = tf.reduce_sum(losses)
        return total, tape.gradient(total, model.trainable_variables)

    return compute_gradients
