"""Loads .keras files, and inspects Keras models."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import files
from keras_vit.layers import InputPreprocessing
from keras_vit.models.image_model import build_with_frozen_parts
from keras_vit.models.replaced_forward import replaced_forward
from keras_vit.models.vision_transformer import VisionTransformer


def load_keras_file(path: str | os.PathLike, compile: bool = True) -> keras.Model:
    """Loads a model from a local or remote .keras file without running code from the file.

    Files of version 0.1.0 contain a Vision Transformer as a plain `keras.Model`. To convert it to a
    `VisionTransformer`, save its weights with `keras_vit.checkpoints.save` and load them with
    `keras_vit.from_pretrained`.

    Args:
        path: local or remote path of the file.
        compile: whether to restore the optimizer, loss and metrics of a compiled model.

    Raises:
        ValueError: the file is damaged, contains code or unknown layers, or is a local file that
            does not exist.
        OSError: a remote file does not exist or cannot be read.
    """
    if files.is_remote(path):
        with tempfile.TemporaryDirectory() as folder:
            files.copy(path, f"{folder}/model.keras")
            return load_keras_file(f"{folder}/model.keras", compile)
    try:
        return keras.saving.load_model(path, compile=compile, safe_mode=True)
    except Exception as error:
        # zipfile, json, h5py and Keras raise many exception types for damaged files.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            "The file must be a complete .keras file that contains only layers of Keras and "
            f"keras_vit, and no code ({reason}). Received: {path}"
        ) from error


def rebuild(
    cls: type[keras.Model], config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None
) -> keras.Model:
    """Builds a model from its config, which contains the configs of the models inside it."""
    config = keras.saving.deserialize_keras_object(config, custom_objects=custom_objects)
    return build_with_frozen_parts(cls, config)


def weights_digest(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's weights, in hexadecimal."""
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


def model_digest(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's config and weights, in hexadecimal.

    A model that is not serializable has only weights.
    """
    try:
        config = model.to_json()
    except (NotImplementedError, TypeError, ValueError):
        config = ""
    return hashlib.sha256((config + weights_digest(model)).encode()).hexdigest()


def image_shape_of(model: keras.Model) -> tuple[int | None, int | None, int | None]:
    """Returns a model's image shape `(H, W, C)`.

    Unknown sizes are None, such as all sizes of a subclassed model.
    """
    try:
        shape = keras.tree.flatten(model.inputs)[0].shape
    except (AttributeError, ValueError, IndexError):  # not built, or a subclass
        first = model.layers[0] if isinstance(model, keras.Sequential) and model.layers else None
        return image_shape_of(first) if isinstance(first, keras.Model) else (None, None, None)
    return tuple(shape[1:]) if len(shape) == 4 else (None, None, None)


# How to give a subclassed model a static shape, for error messages.
_FUNCTIONAL = (
    "make it functional: keras.Model(x, model(x)) with x = keras.Input((height, width, channels))."
)


def check_images_known(model: keras.Model) -> tuple[int, int, int]:
    """Returns `image_shape_of(model)`; raises a `ValueError` if any size is unknown."""
    shape = image_shape_of(model)
    if None in shape:
        raise ValueError(
            f"The model must have a static image size: {_FUNCTIONAL} "
            f"Received: model={model.name!r}, images of shape {shape}"
        )
    return shape  # type: ignore[return-value]


def check_not_masked(model: keras.Model) -> None:
    """Raises a `ValueError` if a model predicts masked patches instead of classes."""
    if getattr(model, "arguments", {}).get("masking_rate"):
        raise ValueError(
            "A model that predicts masked patches is not a classifier and cannot be exported; "
            "only the evaluators fewshot, linear_probe and knn support it. To get a classifier, "
            "save the weights with `keras_vit.checkpoints.save(model, 'weights.npz')` and "
            f"fine-tune with --config.weights=weights.npz. Received: model={model.name!r}"
        )


def output_shape_of(model: keras.Model) -> tuple:
    """Returns `model.output_shape`; raises a `ValueError` for a model that has none."""
    try:
        return model.output_shape
    except (AttributeError, ValueError):
        raise ValueError(
            f"The model must have a known output shape: {_FUNCTIONAL} Received: "
            f"model={model.name!r}"
        ) from None


def last_activation_of(model: keras.Model) -> str:
    """Returns the activation name of the last layer, which may be nested.

    The name is "linear" if the layer has no activation.
    """
    last: keras.layers.Layer = model
    while isinstance(last, keras.Model):
        operations = getattr(last, "operations", None) or last.layers
        if not operations:
            return "linear"
        last = operations[-1]
    if type(last).__name__ in ("Softmax", "Sigmoid"):  # a layer or an op
        return type(last).__name__.lower()
    return keras.activations.serialize(getattr(last, "activation", keras.activations.linear))


def gives_probabilities(model: keras.Model) -> bool:
    """Returns whether a model outputs probabilities.

    The last activation or the outputs for random images show this.
    """
    if last_activation_of(model) in ("softmax", "sigmoid"):
        return True
    shape: Any = image_shape_of(model)
    if None in shape:
        return False
    images = np.random.default_rng(0).integers(-1, 2, (2, *shape)).astype("float32")
    outputs = ops.convert_to_numpy(ops.cast(model(images, training=False), "float32"))
    # The tolerance allows for bfloat16 rounding.
    return bool((outputs >= 0).all() and (np.abs(outputs.sum(-1) - 1) < 0.01).all())


def logits_activation_of(model: keras.Model) -> str:
    """Returns the activation that a model records for its logits.

    This is "softmax" (the default) or "sigmoid".
    """
    return next((layer.logits_activation for layer in _activation_recorders(model)), "softmax")


def set_logits_activation(model: keras.Model, activation: str) -> None:
    """Records the activation of a model's logits, "softmax" or "sigmoid"."""
    for layer in _activation_recorders(model):
        layer.logits_activation = activation


def _activation_recorders(model):
    """Returns the layers that record the activation of a model's logits.

    In a zero-shot classifier, this is the last layer and not the preprocessing of the image tower,
    which other models may share.
    """
    last = model
    while getattr(last, "layers", None):
        last = last.layers[-1]
    if hasattr(last, "logits_activation"):
        return [last]
    return layers_inside(model, InputPreprocessing)


def layers_inside(model, kind):
    """Yields the instances of `kind` in a model and its nested models.

    If the model itself is an instance, yields only the model.
    """
    if isinstance(model, kind):
        yield model
    elif isinstance(model, keras.Model):
        for layer in model.layers:
            yield from layers_inside(layer, kind)


def takes_any_size(model: keras.Model) -> bool:
    """Returns whether the images of a batch for a model may have different sizes."""
    return not all(
        layer.preprocessing.layout.has_one_size
        for layer in layers_inside(model, InputPreprocessing)
    )


def find_vision_transformer(model: keras.Model) -> VisionTransformer:
    """Returns the only `VisionTransformer` that a model is or contains.

    Raises a `ValueError` for none or several.
    """
    found = set(layers_inside(model, VisionTransformer))
    if len(found) == 1:
        return found.pop()
    problem = "more than one Vision Transformer"
    if not found:
        problem = (
            "no Vision Transformer. A clone or a file of version 0.1.0 has only the layers of one: "
            "save its weights with `keras_vit.checkpoints.save`, and load them with "
            "`keras_vit.from_pretrained`"
        )
    raise ValueError(
        f"The model must be or contain one keras_vit.VisionTransformer; it has {problem}. "
        f"Received: model={getattr(model, 'name', model)!r}"
    )


def images_into(model, vit, images, training=False):
    """Returns the input that `vit` receives inside a model.

    The model is called with zeros as the output of `vit`.
    """
    if model is vit:
        return images
    if not model.built:
        model(images)
    received = []

    def zeros(images, training):
        received.append(images)
        batch = ops.shape(images)[0]
        return keras.tree.map_structure(
            lambda y: ops.zeros((batch, *y.shape[1:]), y.dtype), vit.output
        )

    try:
        inputs = [images] if isinstance(model.input, list) else images
    except (AttributeError, ValueError):  # a subclassed model
        inputs = images
    with replaced_forward(vit, zeros, embedded=received):
        model(inputs, training=training)
    if len(received) != 1:
        raise ValueError(
            f"The model must call its Vision Transformer once. Received: {len(received)} calls in "
            f"model={model.name!r}"
        )
    return received[0]


def layers_up_to(model, vit, number):
    """Returns the layers of a model that compute layer `number` of `vit`, in order."""
    block = vit.blocks[max(number, 1) - 1]
    return layers_before(model, vit) + vit.layers[: vit.layers.index(block) + (number > 0)]


def layers_before(model, vit):
    """Returns the layers that come before the `VisionTransformer` in a model, in order."""
    before = []
    while model is not vit:
        inner = next(
            layer for layer in model.layers if vit in layers_inside(layer, VisionTransformer)
        )
        before += model.layers[: model.layers.index(inner)]
        model = inner
    return before


def check_images(model, vit, images):
    """Raises a `ValueError` unless images have the model's input shape.

    Images for `vit` itself must also be floats.
    """
    vit.check_input(images)
    shape = tuple(images.shape)
    dtype = keras.backend.standardize_dtype(images.dtype)
    expected = image_shape_of(model)
    if len(shape) != 4 or any(want not in (None, have) for want, have in zip(expected, shape[1:])):
        raise ValueError(
            f"`images` must have shape (B, {', '.join(map(str, expected))}); resize them, or build "
            f"the model with another `input_shape`. Received: images of shape {shape}"
        )
    if model is vit and not dtype.startswith(("float", "bfloat")):
        raise ValueError(
            "`images` must be floats in the range that the model was trained on, usually [-1, 1]; "
            f"use `keras_vit.preprocess_input(images, model)`. Received: dtype={dtype}"
        )
