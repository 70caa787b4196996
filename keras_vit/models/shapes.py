"""What a model takes and gives: shapes, and whether its outputs are probabilities."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers import InputPreprocessing


def image_shape_of(model: keras.Model) -> tuple[int | None, int | None, int | None]:
    """`(H, W, C)` of a model's images, each None where the model does not say: `Sequential` and functional models do,
    a subclass of `keras.Model` does not."""
    try:
        shape = keras.tree.flatten(model.inputs)[0].shape
    except (AttributeError, ValueError, IndexError):  # not built, or a subclass
        first = model.layers[0] if isinstance(model, keras.Sequential) and model.layers else None
        return image_shape_of(first) if isinstance(first, keras.Model) else (None, None, None)
    return tuple(shape[1:]) if len(shape) == 4 else (None, None, None)


def check_images_known(model: keras.Model) -> tuple[int, int, int]:
    """As `image_shape_of`.

    Raises:
        ValueError: a side or the channels are not known.
    """
    height, width, channels = shape = image_shape_of(model)
    if height is None or width is None or channels is None:
        raise ValueError(
            "The model must say the size of its images: make it functional, keras.Model(inputs, model(inputs)) with "
            f"inputs=keras.Input((height, width, channels)). Received: model={model.name!r}, images of shape {shape}"
        )
    return height, width, channels


def output_shape_of(model: keras.Model) -> tuple:
    """`model.output_shape`.

    Raises:
        ValueError: the model does not say it, as a subclass of `keras.Model`.
    """
    try:
        return model.output_shape
    except (AttributeError, ValueError):
        raise ValueError(
            "The model must say the shape of its outputs: make it functional, keras.Model(inputs, model(inputs)) with "
            f"inputs=keras.Input((height, width, channels)). Received: model={model.name!r}"
        ) from None


def last_activation_of(model: keras.Model) -> str:
    """The name of the activation of the last layer of a model, also in a model inside the model; "linear" for none."""
    last: keras.layers.Layer = model
    while isinstance(last, keras.Model):
        operations = getattr(last, "operations", None) or last.layers
        if not operations:
            return "linear"
        last = operations[-1]
    if type(last).__name__ in ("Softmax", "Sigmoid"):  # a layer, or an operation
        return type(last).__name__.lower()
    return keras.activations.serialize(getattr(last, "activation", keras.activations.linear))


def gives_probabilities(model: keras.Model) -> bool:
    """Whether a model's outputs are probabilities: it ends in a softmax or a sigmoid, or the outputs of random images
    are 0 or more and sum to 1, as those of a mean of softmaxes do."""
    if last_activation_of(model) in ("softmax", "sigmoid"):
        return True
    sides = [side for side in image_shape_of(model) if side is not None]
    if len(sides) < 3:
        return False
    images = np.random.default_rng(0).integers(-1, 2, (2, *sides)).astype("float32")
    outputs = ops.convert_to_numpy(ops.cast(model(images, training=False), "float32"))
    return bool((outputs >= 0).all() and (np.abs(outputs.sum(-1) - 1) < 0.01).all())  # bfloat16 rounds


def logits_activation_of(model: keras.Model) -> str:
    """Returns what turns a model's logits into probabilities, "softmax" or "sigmoid"; "softmax" if no layer says it."""
    layers = _input_preprocessings(model)
    return layers[0].logits_activation if layers else "softmax"


def set_logits_activation(model: keras.Model, activation: str) -> None:
    """Lets a model carry what turns its logits into probabilities, "softmax" or "sigmoid"."""
    for layer in _input_preprocessings(model):
        layer.logits_activation = activation


def _input_preprocessings(model):
    layers = []
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            layers += _input_preprocessings(layer)
        elif isinstance(layer, InputPreprocessing):
            layers.append(layer)
    return layers
