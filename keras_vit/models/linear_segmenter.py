"""Semantic segmentation with a linear head on the patch tokens."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.validation import check_rate
from keras_vit.models.dense import DenseVisionTransformer, batch_norm
from keras_vit.models.image_model import keep


@serializable
class LinearSegmenter(DenseVisionTransformer):
    """A Vision Transformer with a linear head: images `(B, H, W, C)` to logits of every patch.

    The head concatenates the patch tokens of all levels, and applies dropout, BatchNorm and a 1x1
    convolution. Resize the logits to the size of the image with `models.resizing.resize_bilinear`,
    without aligned corners.

    Args:
        head_dropout: dropout rate of the head's input, in [0, 1); 0.1 in DINOv3.
        **kwargs: arguments of `DenseVisionTransformer`, such as `levels=(9, 10, 11, 12)` for the
            last four of 12 blocks instead of the last block, and of `VisionTransformer`.

    Returns:
        float32 logits `(B, rows, columns, classes)`.

    Raises:
        ValueError: an argument is out of range.

    Reference: the segmentation protocols of DINOv2 and DINOv3.
    """

    def __init__(
        self, *, head_dropout: float = 0.0, name: str = "linear_segmenter", **kwargs: Any
    ) -> None:
        check_rate("head_dropout", head_dropout)
        keep(self, head_arguments={"head_dropout": head_dropout})
        super().__init__(name=name, **kwargs)

    def make_dense_head(self, arguments: Mapping[str, Any], policy: dict) -> keras.layers.Layer:
        return LinearHead(
            self.grid,
            self.num_prefix_tokens,
            arguments["classes"],
            arguments["head_dropout"],
            name="head",
            **policy,
        )


@serializable
class LinearHead(BaseLayer):
    """Classifies patches: the tokens of several levels to float32 logits `(B, *grid, outputs)`.

    The tokens are a list of arrays `(B, N, D)`.
    """

    def __init__(self, grid, prefix, outputs, rate, **kwargs):
        super().__init__(**kwargs)
        self._keep_arguments(locals())

    def build(self, input_shape):
        policy = {"dtype": self.dtype_policy}
        shape = (None, *self.grid, sum(tokens[-1] for tokens in input_shape))
        self.dropout = Dropout(self.rate, name="dropout", **policy)
        self.batch_norm = batch_norm("batch_norm", **policy)
        self.classifier = keras.layers.Dense(
            self.outputs, kernel_initializer="zeros", dtype="float32", name="classifier"
        )
        for layer in (self.batch_norm, self.classifier):
            layer.build(shape)

    def call(self, levels, training=None):
        x = ops.concatenate([tokens[:, self.prefix :] for tokens in levels], axis=-1)
        x = ops.reshape(x, (-1, *self.grid, x.shape[-1]))
        x = self.dropout(x, training=training)
        return self.classifier(self.batch_norm(x, training=training))

    def compute_output_shape(self, input_shape):
        return (input_shape[0][0], *self.grid, self.outputs)

    def multiply_accumulates(self, input_shape):
        """Returns the multiply-accumulates of one example."""
        return self.grid[0] * self.grid[1] * self.classifier.kernel.shape[0] * self.outputs
