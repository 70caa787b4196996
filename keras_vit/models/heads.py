"""What follows the features of a model: the layer before the head, and the linear classifier."""

import keras


def add_head(x, *, include_top, classes, bias, activation, representation_size=0):
    """The output of a model, from its features.

    Args:
        x: features `(..., F)`, a Keras tensor.
        include_top: whether there is a `classification_head`.
        classes, bias, activation: of the head.
        representation_size: units of the tanh layer `pre_logits` before it; 0 for none.
    """
    if representation_size:
        x = keras.layers.Dense(
            representation_size, activation="tanh", kernel_initializer="lecun_normal", name="pre_logits"
        )(x)
    return classification_head(classes, bias, activation)(x) if include_top else x


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
