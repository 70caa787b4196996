"""What is asked of any Keras model: its file, its digest, its images and outputs, the Vision Transformer inside it."""

import hashlib
import os
import tempfile

import keras
import numpy as np
from keras import ops

from keras_vit import files
from keras_vit.layers import InputPreprocessing
from keras_vit.models.vision_transformer import VisionTransformer


def load_keras_file(path: str | os.PathLike, compile: bool = True) -> keras.Model:
    """Loads the model of a .keras file, local or remote, which is data alone: code in it is never run.

    Version 0.1.0 saved a Vision Transformer as a plain `keras.Model`. Its weights become a `VisionTransformer` by
    `keras_vit.checkpoints.save` and `keras_vit.from_pretrained`. With `compile`, a compiled model gets its optimizer,
    loss and metrics back. Raises a `ValueError` if there is no such file, it is damaged, or it holds code.
    """
    if files.is_remote(path):
        with tempfile.TemporaryDirectory() as folder:
            files.copy(path, f"{folder}/model.keras")
            return load_keras_file(f"{folder}/model.keras", compile)
    try:
        return keras.saving.load_model(path, compile=compile, safe_mode=True)
    except Exception as error:  # of zipfile, json, h5py or Keras, as the damage is
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            "The file must hold a model that Keras saved, complete and without code of its own, of layers of Keras and "
            f"keras_vit ({reason}). Received: {path}"
        ) from error


def weights_digest(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's weights, in hexadecimal."""
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


def model_digest(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's config and weights, in hexadecimal; of the weights alone without a config."""
    try:
        config = model.to_json()
    except (NotImplementedError, TypeError, ValueError):
        config = ""
    return hashlib.sha256((config + weights_digest(model)).encode()).hexdigest()


def image_shape_of(model: keras.Model) -> tuple[int | None, int | None, int | None]:
    """Returns `(H, W, C)` of a model's images, each None if the model, such as a subclass, does not say."""
    try:
        shape = keras.tree.flatten(model.inputs)[0].shape
    except (AttributeError, ValueError, IndexError):  # not built, or a subclass
        first = model.layers[0] if isinstance(model, keras.Sequential) and model.layers else None
        return image_shape_of(first) if isinstance(first, keras.Model) else (None, None, None)
    return tuple(shape[1:]) if len(shape) == 4 else (None, None, None)


def check_images_known(model: keras.Model) -> tuple[int, int, int]:
    """As `image_shape_of`; a `ValueError` if a side or the channels are not known."""
    height, width, channels = shape = image_shape_of(model)
    if height is None or width is None or channels is None:
        raise ValueError(
            "The model must say the size of its images: make it functional, keras.Model(inputs, model(inputs)) with "
            f"inputs=keras.Input((height, width, channels)). Received: model={model.name!r}, images of shape {shape}"
        )
    return height, width, channels


def check_not_masked(model: keras.Model) -> None:
    """Raises a `ValueError` if a model predicts masked patches, so that it is no classifier."""
    if getattr(model, "arguments", {}).get("masking_rate"):
        raise ValueError(
            "A model that predicts masked patches is no classifier and cannot be exported; the evaluators fewshot, "
            "linear_probe and knn take it. For a classifier, save its weights with `keras_vit.checkpoints.save(model, "
            f"'weights.npz')` and fine-tune with --config.weights=weights.npz. Received: model={model.name!r}"
        )


def output_shape_of(model: keras.Model) -> tuple:
    """`model.output_shape`; a `ValueError` if the model does not say it, as a subclass of `keras.Model`."""
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
    """Returns whether outputs are probabilities: by the last activation, or for random images (0 or more, sum 1)."""
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
    return next((layer.logits_activation for layer in _input_preprocessings(model)), "softmax")


def set_logits_activation(model: keras.Model, activation: str) -> None:
    """Lets a model carry what turns its logits into probabilities, "softmax" or "sigmoid"."""
    for layer in _input_preprocessings(model):
        layer.logits_activation = activation


def _input_preprocessings(model):
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _input_preprocessings(layer)
        elif isinstance(layer, InputPreprocessing):
            yield layer


def is_naflex(model: keras.Model) -> bool:
    """Whether a model takes NaFlex batches."""
    return any(layer.preprocessing.resize == "naflex" for layer in _input_preprocessings(model))


def find_vision_transformer(model: keras.Model) -> VisionTransformer:
    """The one `VisionTransformer` that a model is or has inside, at any depth."""
    found = {id(vit): vit for vit in _find(model)}
    if len(found) == 1:
        return next(iter(found.values()))
    has_blocks = any(type(layer).__name__ == "TransformerBlock" for layer in getattr(model, "layers", ()))
    hint = (
        " It has the layers of one, as a clone or a file of version 0.1.0: save its weights by "
        "`keras_vit.checkpoints.save`, and load them by `keras_vit.from_pretrained`."
        if has_blocks and not found
        else ""
    )
    raise ValueError(
        f"The model must be, or have inside, one keras_vit.VisionTransformer; this one has "
        f"{'more than one Vision Transformer' if found else 'no Vision Transformer'}.{hint} "
        f"Received: model={getattr(model, 'name', model)!r}"
    )


def _find(model):
    if isinstance(model, VisionTransformer):
        yield model
    elif isinstance(model, keras.Model):
        for layer in model.layers:
            yield from _find(layer)


def images_into(model, vit, images, training=False):
    """What comes to the `vit` inside a model, which is called with zeros in place of the outputs of the `vit`."""
    if model is vit:
        return images
    if not model.built:
        model(images)
    received = []

    def zeros(images):
        received.append(images)
        batch = ops.shape(images)[0]
        return keras.tree.map_structure(lambda y: ops.zeros((batch, *y.shape[1:]), y.dtype), vit.output)

    try:
        inputs = [images] if isinstance(model.input, list) else images
    except (AttributeError, ValueError):  # a subclass does not say
        inputs = images
    with vit.replaced_forward(zeros) as embedded:
        model(inputs, training=training)
    received += embedded  # by a `FeatureModel`
    if len(received) != 1:
        raise ValueError(
            f"The model must call its Vision Transformer once. Received: {len(received)} calls, {model.name!r}"
        )
    return received[0]


def layers_before(model, vit):
    """The layers of a model that stand before the `VisionTransformer` inside it, in the order of `model.layers`."""
    before = []
    while model is not vit:
        inner = next(layer for layer in model.layers if any(other is vit for other in _find(layer)))
        before += model.layers[: model.layers.index(inner)]
        model = inner
    return before


def check_images(model, vit, images):
    """Raises a `ValueError` unless images `(B, H, W, C)` are of the model's size and are floats if it is the `vit`."""
    vit.check_naflex(images)
    shape, dtype = tuple(images.shape), keras.backend.standardize_dtype(images.dtype)
    expected = image_shape_of(model)
    if len(shape) != 4 or any(want not in (None, have) for want, have in zip(expected, shape[1:])):
        raise ValueError(
            f"The model's images are (B, {', '.join(map(str, expected))}); resize them, or build the model for "
            f"another `input_shape`. Received: images of shape {shape}"
        )
    if model is vit and not dtype.startswith(("float", "bfloat")):
        raise ValueError(
            "Images must be floats in the range that the model was trained on, [-1, 1] for most: "
            f"`keras_vit.preprocess_input(images, model)`. Received: dtype={dtype}"
        )
