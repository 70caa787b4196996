"""The Vision Transformer inside a model, wherever it is."""

import keras
from keras import ops

from keras_vit.models.shapes import image_shape_of
from keras_vit.models.vision_transformer import VisionTransformer


def find_vision_transformer(model: keras.Model) -> VisionTransformer:
    """The one `VisionTransformer` that a model is or has inside, at any depth."""
    found = {id(vit): vit for vit in _find(model)}
    if len(found) == 1:
        return next(iter(found.values()))
    has_blocks = not found and any("TransformerBlock" in type(x).__name__ for x in getattr(model, "layers", ()))
    hint = (
        " It has the layers of one: load files of version 0.1.0 by `keras_vit.models.load_keras_file`, and call a "
        "model as a layer, `model(images)`, instead of cloning it or going on from `model.output`."
        if has_blocks
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
    """What comes to the `VisionTransformer` inside a model of the model's images `(B, H, W, C)`.

    The model is called with zeros in place of the Vision Transformer's outputs.
    """
    if model is vit:
        return images
    if not model.built:
        model(images)
    received = []

    def zeros(images):
        received.append(images)
        batch = ops.shape(images)[0]
        return keras.tree.map_structure(lambda y: ops.zeros((batch, *y.shape[1:]), y.dtype), vit.output)

    with vit.replaced_forward(zeros) as embedded:
        model(_as_inputs(model, images), training=training)
    received += embedded  # by a `FeatureModel`
    if len(received) != 1:
        raise ValueError(
            f"The model must call its Vision Transformer once. Received: {len(received)} calls, model={model.name!r}"
        )
    return received[0]


def _as_inputs(model, images):
    """The images as the model has its inputs, alone or as a list of one."""
    try:
        return [images] if isinstance(model.input, list) else images
    except (AttributeError, ValueError):  # a subclass does not say
        return images


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
