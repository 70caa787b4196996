"""No targets, for tasks that learn from images alone."""

import tensorflow as tf

from keras_vit.data.targets.target import Target


class NoTarget(Target):
    """A target of zero, float32 `()`, for every image; labels are not read."""

    refused = ("label_smoothing", "class_weights", "sampling")

    def spec(self):
        return tf.TensorSpec([], tf.float32)

    def decode(self, example):
        return self.padding(), tf.constant(1.0), tf.constant(True)

    def mix(self, targets, partners, share):
        return targets
