"""Representations from any block of a Vision Transformer, which may be nested in another model."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_vit.layers.base import serializable
from keras_vit.layers.validation import check_choice, check_positive_int
from keras_vit.models.any_model import (
    check_images,
    find_vision_transformer,
    images_into,
    layers_inside,
    layers_up_to,
    rebuild,
)
from keras_vit.models.image_model import ImageModel
from keras_vit.models.layer_numbers import layer_numbers
from keras_vit.models.replaced_forward import replacement_of

TOKENS = ("class", "registers", "patch", "all", "pooled")


def features(
    model: keras.Model,
    images: Any,
    layers: int | Sequence[int] | None = None,
    tokens: str = "class",
    grid: bool = False,
    norm: bool = True,
    batch_size: int = 32,
) -> np.ndarray | list[np.ndarray]:
    """Computes representations of images in one forward pass per batch.

    The pass ends at the last requested layer.

    Args:
        model: a `keras.Model` that is or contains a Vision Transformer.
        images: float images `(N, H, W, C)`, preprocessed for the model; one such image `(H, W, C)`;
            or a finite `tf.data.Dataset` of such images or batches, or of tuples that begin with
            them. The results for one image have no axis N.
        layers: layer number, or a list of layer numbers in any order: 1 is the output of the first
            block, 0 is the input of the first block, and -1 is the output of the last block. None
            for the last block.
        tokens: "class" for the class token `(N, D)`; "registers" for the register tokens
            `(N, R, D)`; "patch" for the patch tokens in raster order, `(N, P, D)`; "all" for all
            tokens in this order; "pooled" for the pooled tokens `(N, F)`, which the head reads. For
            "pooled", `pre_logits` is applied only to the last layer.
        grid: whether to return patch tokens as maps `(N, rows, columns, D)`.
        norm: whether to apply the Vision Transformer's final LayerNorm to each layer; must be True
            for "pooled".
        batch_size: number of images per forward pass. The batches of a dataset stay as they are.

    Returns:
        A float32 numpy array, or a list of arrays if `layers` is a list.

    Raises:
        ValueError: the model has no Vision Transformer, lacks a requested layer or kind of token,
            or does not accept the images; or another argument is invalid.
    """
    extractor = FeatureModel(model, layers, tokens=tokens, grid=grid, norm=norm)
    check_positive_int("batch_size", batch_size)
    is_dataset = hasattr(images, "element_spec")
    if not is_dataset and not hasattr(images, "dtype"):
        images = np.asarray(images)
    is_one_image = not is_dataset and len(images.shape) == 3
    outputs = []
    for batch in _batches(images[None] if is_one_image else images, batch_size):
        check_images(model, extractor.vit, batch)
        outputs.append(keras.tree.flatten(extractor(batch, training=False)))
    if not outputs:
        raise ValueError("The dataset must have at least one batch. Received: an empty dataset")
    arrays = [
        np.concatenate([ops.convert_to_numpy(ops.cast(x, "float32")) for x in batches])
        for batches in zip(*outputs)
    ]
    if is_one_image:
        arrays = [array[0] for array in arrays]
    return arrays[0] if extractor.is_single else arrays


def _batches(images, batch_size):
    """Yields the batches of an array or a `tf.data.Dataset`.

    An array has at least one batch, so that the result for zero images has the right shape.
    """
    if not hasattr(images, "element_spec"):
        for start in range(0, max(len(images), 1), batch_size):
            yield images[start : start + batch_size]
        return
    if keras.tree.flatten(images.element_spec)[0].shape.rank == 3:
        images = images.batch(batch_size)
    for element in images:
        yield ops.convert_to_tensor(keras.tree.flatten(element)[0])


@serializable
class FeatureModel(keras.Model):
    """`features` as a Keras model that can be trained, saved and exported to ONNX or LiteRT.

    The model shares the layers of `model`. For arguments and errors, see `features`. The output is
    a tensor in the Vision Transformer's compute dtype, or a list of tensors if `layers` is a list.
    """

    def __init__(
        self,
        model: keras.Model,
        layers: int | Sequence[int] | None = None,
        tokens: str = "class",
        grid: bool = False,
        norm: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"dtype": "float32", **kwargs})
        vit = find_vision_transformer(model)
        self._numbers, self.is_single = layer_numbers(vit, -1 if layers is None else layers)
        _validate(vit, tokens, grid, norm)
        self.model = model
        self.vit = vit
        self.tokens = tokens
        self.use_grid = grid
        self.norm = norm
        self.build((None, *vit.image_shape))

    def build(self, input_shape: tuple) -> None:
        self.built = True  # all layers belong to the wrapped model, which is already built

    @property
    def inputs(self) -> list[KerasTensor]:
        return self.model.inputs

    def _used_layers(self):
        """Returns the layers that affect the output."""
        vit = self.vit
        used = layers_up_to(self.model, vit, max(self._numbers))
        if self.norm:
            used.append(vit.norm)
        if self.tokens == "pooled":
            pooling = (vit.pool_layer, vit.pool_norm, vit.pre_logits)
            used += [layer for layer in pooling if layer is not None]
        return used

    def _only_used(self, variables):
        """Removes variables that do not affect the output, such as those of the head.

        These variables have no gradient.
        """
        used = {id(variable) for layer in self._used_layers() for variable in layer.variables}
        return [variable for variable in variables if id(variable) in used]

    @property
    def variables(self) -> list[keras.Variable]:
        return self._only_used(super().variables)

    @property
    def weights(self) -> list[keras.Variable]:
        return self._only_used(super().weights)

    def call(self, images: KerasTensor, training: bool = False) -> KerasTensor | list[KerasTensor]:
        vit = self.vit
        outputs = {}
        x = images_into(self.model, vit, images, training)
        embedded = replacement_of(vit).embedded
        if embedded is not None:
            embedded.append(x)
        if self.use_grid:
            vit.check_grid()
        x = vit.embed(x, training)
        last = max(self._numbers)
        all_tokens = self.tokens in ("registers", "patch", "all")
        for number in range(last + 1):
            if number:
                x = vit.run_block(number, x, training, all_tokens)
            if number in self._numbers:
                outputs[number] = self._select(x, number)
        result = [outputs[number] for number in self._numbers]
        return result[0] if self.is_single else result

    def _select(self, x, number):
        """Returns the requested tokens of layer `number`, given all its tokens."""
        vit = self.vit
        if self.norm:
            x = vit.norm(x)
        if self.tokens == "pooled":
            return vit.pool(x, pre_logits=number == vit.num_layers)
        if self.tokens == "class":
            return x[:, 0]
        if self.tokens == "all":
            return x
        if self.tokens == "registers":
            return x[:, vit.num_class_tokens : vit.num_prefix_tokens]
        x = x[:, vit.num_prefix_tokens :]
        return ops.reshape(x, (-1, *vit.grid, vit.hidden_size)) if self.use_grid else x

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "model": keras.saving.serialize_keras_object(self.model),
            "layers": self._numbers[0] if self.is_single else list(self._numbers),
            "tokens": self.tokens,
            "grid": self.use_grid,
            "norm": self.norm,
        }

    from_config = classmethod(rebuild)


def tokens_read(model: keras.Model) -> tuple[slice, int]:
    """Returns which tokens the output reads, and the number of the last layer used, at least 1.

    The tokens are the class tokens, the register tokens or, if the output reads any other tokens,
    the patch tokens.
    """
    vit = find_vision_transformer(model)
    reader = find_feature_model(model)
    tokens = "pooled" if reader is None else reader.tokens
    last = vit.num_layers if reader is None else max(*reader._numbers, 1)
    if tokens == "class":
        return slice(1), last
    if tokens == "registers":
        return slice(vit.num_class_tokens, vit.num_prefix_tokens), last
    if tokens == "pooled" and vit.classifier == "token":
        return slice(vit.num_class_tokens), last  # two in a distilled model
    return slice(vit.num_prefix_tokens, None), last


def find_feature_model(model: keras.Model) -> FeatureModel | None:
    """Returns the first `FeatureModel` that a model is or contains at any depth, or None."""
    return next(layers_inside(model, FeatureModel), None)


def returns_features(model: keras.Model) -> bool:
    """Returns whether a model returns the output of a `FeatureModel` or of a headless model."""
    while not isinstance(model, FeatureModel | ImageModel):
        is_sequential = isinstance(model, keras.Sequential)
        steps = model.layers if is_sequential else getattr(model, "operations", None)
        if not steps:
            return False
        model = steps[-1]
    return isinstance(model, FeatureModel) or model.head is None


def _validate(vit, tokens, grid, norm):
    """Raises a `ValueError` for an invalid argument of a `FeatureModel`."""
    check_choice("tokens", tokens, TOKENS)
    lacks = {
        "class": not vit.num_class_tokens,
        "registers": not vit.arguments["num_registers"],
        "pooled": vit.pool_layer is None,
    }
    if lacks.get(tokens):
        raise ValueError(
            f"`tokens` must not be {tokens!r}, because the model lacks such tokens. Received: "
            f"{tokens=}, model={vit.name!r}, classifier={vit.classifier!r}"
        )
    if grid and tokens != "patch":
        raise ValueError(f"`tokens` must be 'patch' with grid=True. Received: tokens={tokens!r}")
    if grid:
        vit.check_grid()
    if tokens == "pooled" and not norm:
        raise ValueError(
            "`norm` must be True for tokens='pooled', because the head reads normalized tokens. "
            f"Received: {norm=}"
        )
