"""Functions on any Keras model: its file, digest, images, outputs, and the Vision Transformer inside it."""

import hashlib
import os
import tempfile

import keras
import numpy as np
from keras import ops

from keras_vit import files
from keras_vit.layers import InputPreprocessing, TransformerBlock
from keras_vit.models.vision_transformer import VisionTransformer


def load_keras_file(path: str | os.PathLike, compile: bool = True) -> keras.Model:
    """Loads a model from a local or remote .keras file, never running code from the file.

    Version 0.1.0 saved a Vision Transformer as a plain `keras.Model`. To turn it into a `VisionTransformer`, save its
    weights with `keras_vit.checkpoints.save` and load them with `keras_vit.from_pretrained`.

    Args:
        path: path of the file.
        compile: whether to restore the optimizer, loss and metrics of a compiled model.

    Raises:
        ValueError: the file does not exist, is damaged, or contains code.
    """
    if files.is_remote(path):
        with tempfile.TemporaryDirectory() as folder:
            files.copy(path, f"{folder}/model.keras")
            return load_keras_file(f"{folder}/model.keras", compile)
    try:
        return keras.saving.load_model(path, compile=compile, safe_mode=True)
    except Exception as error:  # from zipfile, json, h5py or Keras, depending on the damage
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            "The file must be a complete Keras model file that contains only layers of Keras and keras_vit, and no "
            f"code ({reason}). Received: {path}"
        ) from error


def weights_digest(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's weights, in hexadecimal."""
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


def model_digest(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's config, if it has one, and weights, in hexadecimal."""
    try:
        config = model.to_json()
    except (NotImplementedError, TypeError, ValueError):
        config = ""
    return hashlib.sha256((config + weights_digest(model)).encode()).hexdigest()


def image_shape_of(model: keras.Model) -> tuple[int | None, int | None, int | None]:
    """Returns `(H, W, C)` of a model's images; each is None if unknown, as in a subclassed model."""
    try:
        shape = keras.tree.flatten(model.inputs)[0].shape
    except (AttributeError, ValueError, IndexError):  # not built, or a subclass
        first = model.layers[0] if isinstance(model, keras.Sequential) and model.layers else None
        return image_shape_of(first) if isinstance(first, keras.Model) else (None, None, None)
    return tuple(shape[1:]) if len(shape) == 4 else (None, None, None)


_FUNCTIONAL = (
    "make it functional, keras.Model(inputs, model(inputs)) with inputs=keras.Input((height, width, channels))."
)


def check_images_known(model: keras.Model) -> tuple[int, int, int]:
    """Returns `image_shape_of` a model; raises a `ValueError` if a part of it is unknown."""
    height, width, channels = shape = image_shape_of(model)
    if height is None or width is None or channels is None:
        raise ValueError(
            f"The model must have a static image size: {_FUNCTIONAL} "
            f"Received: model={model.name!r}, images of shape {shape}"
        )
    return height, width, channels


def check_not_masked(model: keras.Model) -> None:
    """Raises a `ValueError` if a model predicts masked patches and is therefore not a classifier."""
    if getattr(model, "arguments", {}).get("masking_rate"):
        raise ValueError(
            "A model that predicts masked patches is not a classifier and cannot be exported; the evaluators fewshot, "
            "linear_probe and knn accept it. To get a classifier, save its weights, `keras_vit.checkpoints.save(model, "
            f"'weights.npz')`, and fine-tune with --config.weights=weights.npz. Received: model={model.name!r}"
        )


def output_shape_of(model: keras.Model) -> tuple:
    """Returns `model.output_shape`; raises a `ValueError` if it is unknown, as in a subclassed model."""
    try:
        return model.output_shape
    except (AttributeError, ValueError):
        raise ValueError(
            f"The model must have a known output shape: {_FUNCTIONAL} Received: model={model.name!r}"
        ) from None


def last_activation_of(model: keras.Model) -> str:
    """Returns the name of the activation of a model's last layer, including nested models; "linear" for none."""
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
    """Returns whether outputs are probabilities, by the last activation or by the outputs for random images."""
    if last_activation_of(model) in ("softmax", "sigmoid"):
        return True
    sides = [side for side in image_shape_of(model) if side is not None]
    if len(sides) < 3:
        return False
    images = np.random.default_rng(0).integers(-1, 2, (2, *sides)).astype("float32")
    outputs = ops.convert_to_numpy(ops.cast(model(images, training=False), "float32"))
    return bool((outputs >= 0).all() and (np.abs(outputs.sum(-1) - 1) < 0.01).all())  # bfloat16 rounds


def logits_activation_of(model: keras.Model) -> str:
    """Returns the activation that a model records for its logits, "softmax" (the default) or "sigmoid"."""
    return next((layer.logits_activation for layer in layers_inside(model, InputPreprocessing)), "softmax")


def set_logits_activation(model: keras.Model, activation: str) -> None:
    """Records in a model which activation turns its logits into probabilities, "softmax" or "sigmoid"."""
    for layer in layers_inside(model, InputPreprocessing):
        layer.logits_activation = activation


def layers_inside(model, kind):
    """Yields the model itself if it is a `kind`; otherwise every `kind` nested inside it, at any depth."""
    if isinstance(model, kind):
        yield model
    elif isinstance(model, keras.Model):
        for layer in model.layers:
            yield from layers_inside(layer, kind)


def is_naflex(model: keras.Model) -> bool:
    """Returns whether a model takes NaFlex batches."""
    return any(layer.preprocessing.resize == "naflex" for layer in layers_inside(model, InputPreprocessing))


def find_vision_transformer(model: keras.Model) -> VisionTransformer:
    """Returns the one `VisionTransformer` that a model is or contains at any depth."""
    found = list({id(vit): vit for vit in layers_inside(model, VisionTransformer)}.values())
    if len(found) == 1:
        return found[0]
    problem = "more than one Vision Transformer" if found else "no Vision Transformer"
    if not found and any(layers_inside(model, TransformerBlock)):
        problem += (
            ", only the layers of one, like a clone or a file of version 0.1.0. Save its weights with "
            "`keras_vit.checkpoints.save` and load them with `keras_vit.from_pretrained`"
        )
    raise ValueError(
        f"The model must be or contain one keras_vit.VisionTransformer; this one has {problem}. "
        f"Received: model={getattr(model, 'name', model)!r}"
    )


def images_into(model, vit, images, training=False):
    """Returns the input that the `vit` inside a model receives; zeros replace the outputs of the `vit`."""
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
    except (AttributeError, ValueError):  # a subclassed model
        inputs = images
    with vit.replaced_forward(zeros) as embedded:
        model(inputs, training=training)
    received += embedded  # calls from a `FeatureModel`
    if len(received) != 1:
        raise ValueError(
            f"The model must call its Vision Transformer once. Received: {len(received)} calls, {model.name!r}"
        )
    return received[0]


def layers_before(model, vit):
    """Returns the layers of a model that come before the `VisionTransformer` inside it, in order."""
    before = []
    while model is not vit:
        inner = next(
            layer for layer in model.layers if any(other is vit for other in layers_inside(layer, VisionTransformer))
        )
        before += model.layers[: model.layers.index(inner)]
        model = inner
    return before


def check_images(model, vit, images):
    """Raises a `ValueError` unless images `(B, H, W, C)` fit the model, and are floats if the model is the `vit`."""
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
