"""Representations of any block of a Vision Transformer, inside any model."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.validation import check_choice, check_positive_int
from keras_vit.models.any_model import check_images, find_vision_transformer, images_into, layers_before

TOKENS = ("class", "registers", "patch", "all", "pooled")


def features(
    model: keras.Model,
    images: np.ndarray,
    layers: int | Sequence[int] | None = None,
    tokens: str = "class",
    grid: bool = False,
    norm: bool = True,
    batch_size: int = 32,
) -> np.ndarray | list[np.ndarray]:
    """Representations of images, from one pass that ends after the last layer that is asked for.

    Args:
        model: a `keras.Model` with a Vision Transformer in it, also wrapped inside other models.
        images: `(N, H, W, C)`, float, as the model takes them.
        layers: a number, or a list of numbers in any order: 1 is the first block, 0 are the tokens before it, -1 is
            the last block. None for the last.
        tokens: "class", the class token `(N, D)`; "registers", `(N, R, D)`; "patch", the tokens of the patches, row by
            row, `(N, P, D)`; "all", these in this order; "pooled", what the model's head reads, `(N, F)`, of the last
            layer after `pre_logits` if there is one.
        grid: whether the tokens of the patches are `(N, rows, columns, D)`.
        norm: whether the LayerNorm after the last block is applied to each layer; "pooled" needs it.
        batch_size: images that are computed at a time.

    Returns:
        float32 numpy arrays: one, or a list if `layers` is a list.

    Raises:
        ValueError: there is no Vision Transformer in the model, no such layer, no such token, or the images are not of
            the model's size.
    """
    extractor = FeatureModel(model, layers, tokens=tokens, grid=grid, norm=norm)
    images = images if hasattr(images, "dtype") else np.asarray(images)
    check_positive_int("batch_size", batch_size)
    check_images(model, extractor.vit, images)
    # At least one call: no images give arrays of no rows, of the right shape.
    starts = range(0, max(len(images), 1), batch_size)
    parts = [keras.tree.flatten(extractor(images[start : start + batch_size], training=False)) for start in starts]
    arrays = [
        np.concatenate([ops.convert_to_numpy(ops.cast(part, "float32")) for part in of_layer])
        for of_layer in zip(*parts)
    ]
    return arrays[0] if extractor.is_single else arrays


@keras.saving.register_keras_serializable(package="keras_vit")
class FeatureModel(keras.Model):
    """The same as `features` as a Keras model, to be trained further, saved or exported: images to representations.

    It shares the layers of `model`.

    Args:
        model, layers, tokens, grid, norm: as of `features`.

    Returns:
        A tensor, or a list if `layers` is a list, in the compute dtype.

    Raises:
        ValueError: as `features`.
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
        self.is_single = not isinstance(layers, Sequence | np.ndarray)
        chosen: list[Any] = (
            list(layers) if isinstance(layers, Sequence | np.ndarray) else [-1 if layers is None else layers]
        )
        if not chosen:
            raise ValueError("`layers` must name a layer. Received: layers=[]")
        self._numbers = [vit.layer_number(layer) for layer in chosen]
        _validate(vit, tokens, grid, norm)
        self.model, self.vit, self.tokens, self.use_grid, self.norm = model, vit, tokens, grid, norm
        self.build((None, *vit.image_shape))

    def build(self, input_shape: tuple) -> None:
        self.built = True  # its layers are those of the model, which is built

    def _used_layers(self):
        vit = self.vit
        last = vit.layers.index(vit.blocks[max(*self._numbers, 1) - 1])
        used = layers_before(self.model, vit) + vit.layers[: last + 1]
        if self.norm:
            used.append(vit.norm)
        if self.tokens == "pooled":
            used += [layer for layer in (vit.pool_layer, vit.pool_norm, vit.pre_logits) if layer is not None]
        return used

    def _only_used(self, variables):
        """Without the variables that nothing is computed with, the head's: they have no gradient."""
        used = {id(variable) for layer in self._used_layers() for variable in layer.variables}
        return [variable for variable in variables if id(variable) in used]

    @property
    def variables(self) -> list[keras.Variable]:
        return self._only_used(super().variables)

    @property
    def weights(self) -> list[keras.Variable]:
        return self._only_used(super().weights)

    def call(self, images: keras.KerasTensor, training: bool = False) -> keras.KerasTensor | list[keras.KerasTensor]:
        vit, outputs = self.vit, {}
        x = vit.embed(images_into(self.model, vit, images, training), training)
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
            return x[:, vit.num_prefix_tokens - vit.arguments["num_registers"] : vit.num_prefix_tokens]
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

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> "FeatureModel":
        config = dict(config)
        model = keras.saving.deserialize_keras_object(config.pop("model"), custom_objects=custom_objects)
        return cls(model, **config)


def tokens_read(model: keras.Model) -> tuple[bool, int]:
    """Returns `(class_token, layer)`: whether the output reads the class token alone, and its last layer, from 1."""
    vit = find_vision_transformer(model)
    reader = find_feature_model(model)
    if reader is None:
        return vit.classifier == "token", vit.num_layers
    is_class = reader.tokens == "class" or (reader.tokens == "pooled" and vit.classifier == "token")
    return is_class, max(*reader._numbers, 1)


def find_feature_model(model: keras.Model) -> FeatureModel | None:
    """The first `FeatureModel` that a model is or has inside, at any depth, or None."""
    if isinstance(model, FeatureModel) or not isinstance(model, keras.Model):
        return model if isinstance(model, FeatureModel) else None
    return next(filter(None, map(find_feature_model, model.layers)), None)


def _validate(vit, tokens, grid, norm):
    check_choice("tokens", tokens, TOKENS)
    if tokens == "class" and vit.class_token is None:
        raise ValueError(
            f"The model has no class token; `tokens` may be 'pooled', 'patch' or 'all'. Received: tokens='class', "
            f"model={vit.name!r}"
        )
    if tokens == "registers" and not vit.arguments["num_registers"]:
        raise ValueError(f"The model has no registers. Received: tokens='registers', model={vit.name!r}")
    if grid and tokens != "patch":
        raise ValueError(f"Only tokens of patches are a grid: `tokens` must be 'patch'. Received: tokens={tokens!r}")
    if grid:
        vit.check_grid()
    if tokens == "pooled":
        vit.check_pools()
        if not norm:
            raise ValueError("The head reads normed tokens: pass norm=True. Received: tokens='pooled', norm=False")
