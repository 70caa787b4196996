"""The linear classifier on top of a model."""

import keras


def classification_head(classes, bias=0.0, activation=None):
    """A dense layer from features `(..., F)` to float32 logits `(..., classes)`, called "head".

    Its kernel starts with zeros, so that the first logits are the bias alone.

    Args:
        classes: number of outputs.
        bias: initial value of each bias.
        activation: such as "softmax"; None gives logits.
    """
    return keras.layers.Dense(
        classes,
        activation=activation,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(bias),
        dtype="float32",
        name="head",
    )
