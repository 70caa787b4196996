"""Axial-ViT (paper appendix D.6) as a functional Keras model."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_vit import layers
from keras_vit.layers.base import serializable
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.validation import check_positive_int, check_rate
from keras_vit.models.image_model import ImageModel, add_head, keep, kept_arguments
from keras_vit.models.parts import shared_arguments
from keras_vit.models.validation import patch_grid
from keras_vit.preprocessing import Preprocessing


@serializable
class AxialVisionTransformer(ImageModel):
    """An Axial-ViT: images `(B, H, W, C)` in [-1, 1] to logits `(B, classes)`.

    Each block is a `layers.AxialTransformerBlock`, which attends along rows, then columns, of the
    patch grid. Position embeddings are learned for columns and rows (`layers.PositionEmbedding2D`).
    The head reads the mean of all tokens, because a class token would belong to no row or column.

    Args:
        patch_size, num_layers, hidden_size, mlp_dim, num_heads, input_shape, include_top, dropout,
            attention_dropout, stochastic_depth, exact_gelu, epsilon, head_bias,
            classifier_activation, preprocessing, remat, name, dtype: see `VisionTransformer`.
            Axial-ViT-B/16 has the same sizes as ViT-B/16.
        classes: number of classes of the head.
        weights: path of weights that `checkpoints.save` wrote for an Axial-ViT, or None.
        representation_size: units of the tanh layer `pre_logits` before the head; 0 omits the
            layer.

    Returns: float32 logits `(B, classes)`. With `include_top=False`, features
        `(B, representation_size or hidden_size)` in the compute dtype.

    Attributes:
        arguments, image_shape, preprocessing, input_preprocessing, head: see `ImageModel`.
        grid: `(rows, columns)` of the patches.
        blocks: the `AxialTransformerBlock`s, in order.

    Raises:
        ValueError: an argument is out of range, `patch_size` does not divide the image, or the
            checkpoint does not match.

    Reference: paper appendix D.6. Position embedding and pooling, which the paper does not specify,
        follow Scenic's `EncoderAxial`.
    """

    def __init__(
        self,
        *,
        patch_size: int,
        num_layers: int,
        hidden_size: int,
        mlp_dim: int,
        num_heads: int,
        input_shape: tuple[int, int, int] = (224, 224, 3),
        classes: int = 1000,
        include_top: bool = True,
        weights: str | os.PathLike | None = None,
        representation_size: int = 0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        exact_gelu: bool = False,
        epsilon: float = 1e-6,
        head_bias: float = 0.0,
        classifier_activation: str | Callable | None = None,
        preprocessing: Preprocessing | Mapping[str, Any] | None = None,
        remat: bool = False,
        name: str = "axial_vision_transformer",
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        arguments = kept_arguments(locals())
        for argument in ("patch_size", "num_layers", "classes"):
            check_positive_int(argument, arguments[argument])
        check_rate("stochastic_depth", stochastic_depth)
        grid = patch_grid(input_shape, patch_size)
        policy = {"dtype": dtype}
        images = keras.Input(shape=input_shape, name="images")
        x = layers.InputPreprocessing(preprocessing, name="expected_images", **policy)(images)
        x = layers.Patches(patch_size, name="patches", **policy)(x)
        x = layers.PatchEncoder(hidden_size, name="embedding", **policy)(x)
        x = layers.PositionEmbedding2D(grid, name="position_embedding", **policy)(x)
        x = Dropout(dropout, name="dropout", **policy)(x)
        blocks = [
            layers.AxialTransformerBlock(grid, **shared, **policy)
            for shared in shared_arguments(layers.AxialTransformerBlock, arguments)
        ]
        for block in blocks:
            x = block(x)
        x = keras.layers.LayerNormalization(epsilon=epsilon, name="encoder_norm", **policy)(x)
        pool = keras.layers.GlobalAveragePooling1D("channels_last", name="pool", **policy)
        keep(self, grid=grid, blocks=tuple(blocks))
        super().__init__(
            images,
            add_head(pool(x), arguments, **policy),
            arguments=arguments,
            weights=weights,
            preprocessing=preprocessing,
            name=name,
            **policy,
            **kwargs,
        )
