"""An image tower and a text tower that embed images and texts in the same space."""

import math
from typing import Any

import keras
from keras import KerasTensor, ops

from keras_vit.arguments import check_names
from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.models.any_model import rebuild
from keras_vit.models.image_model import frozen_parts, keep
from keras_vit.models.text_transformer import TextTransformer
from keras_vit.preprocessing import Preprocessing


@serializable
class Similarity(BaseLayer):
    """Computes float32 logits `(images, texts)` of normalized embeddings `(B, E)`.

    The logits are `exp(logit_scale) * cosine + logit_bias`.

    Args:
        scale: initial factor of the cosine; its logarithm is the weight `logit_scale`.
        bias: initial value of the weight `logit_bias`; None for no bias.
    """

    def __init__(self, scale, bias, **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32"})
        if not scale > 0:
            raise ValueError(
                "`scale` must be above 0, because it is the exponential of `logit_scale`. "
                f"Received: scale={scale!r}"
            )
        self._keep_arguments(locals())

    def build(self, images_shape, texts_shape):
        log_scale = keras.initializers.Constant(math.log(self.scale))
        self.logit_scale = self.add_weight((), log_scale, name="logit_scale")
        self.logit_bias = None
        if self.bias is not None:
            bias = keras.initializers.Constant(self.bias)
            self.logit_bias = self.add_weight((), bias, name="logit_bias")

    def call(self, images, texts):
        logits = ops.exp(self.logit_scale) * ops.matmul(images, ops.transpose(texts))
        return logits if self.logit_bias is None else logits + self.logit_bias

    def compute_output_shape(self, images_shape, texts_shape):
        return (images_shape[0], texts_shape[0])


@serializable
class TwoTowers(keras.Model):
    """An image and a text tower, which map `[images, ids]` to float32 logits `(images, texts)`.

    Row i of the logits belongs to image i, and column j to text j. The numbers of images and texts
    may differ.

    Args:
        image: model from images to embeddings `(B, E)`: CLIP with its head (the projection), SigLIP
            without a head. It is shared, not copied.
        text: `TextTransformer` with `embedding_size` E; also shared.
        scale: initial factor of the cosine similarity, the exponential of the weight
            `logit_scale`.
        bias: initial value of the weight `logit_bias` that is added to the logits, as in SigLIP;
            None for no bias, as in CLIP.
        name: as for any Keras model.

    Attributes:
        image, text: the towers.
        similarity: the layer with the weights `logit_scale` and `logit_bias` (None without a bias).
        preprocessing: that of the image tower.

    Raises:
        ValueError: the embeddings of the towers differ in size, or `scale` is not above 0.

    Reference: CLIP (Radford et al., 2021), SigLIP (Zhai et al., 2023).
    """

    def __init__(
        self,
        image: keras.Model,
        text: TextTransformer,
        *,
        scale: float = 10.0,
        bias: float | None = None,
        name: str = "two_towers",
        **kwargs: Any,
    ) -> None:
        check_names("TwoTowers", ("image", "text", "scale", "bias", "name", "trainable"), kwargs)
        if image.output_shape[1:] != text.output_shape[1:]:
            raise ValueError(
                "Both towers must return embeddings (B, E) of the same size E. Received: outputs "
                f"of shape {image.output_shape} from {image.name!r}, {text.output_shape} from "
                f"{text.name!r}"
            )
        similarity = Similarity(scale, bias, name="similarity")
        keep(self, image=image, text=text, similarity=similarity)
        images = keras.Input(image.input_shape[1:], name="images")
        ids = keras.Input(text.input_shape[1:], dtype="int32", name="ids")
        logits = similarity(self.encode_image(images), self.encode_text(ids))
        super().__init__([images, ids], logits, name=name, **kwargs)

    def encode_image(self, images: KerasTensor, training: bool | None = None) -> KerasTensor:
        """Computes the normalized embeddings of images: `(B, H, W, C)` to float32 `(B, E)`."""
        return _normalized(self.image(images, training=training))

    def encode_text(self, ids: KerasTensor, training: bool | None = None) -> KerasTensor:
        """Computes the normalized embeddings of texts.

        Maps int32 token ids `(B, length)` to float32 `(B, E)`.
        """
        return _normalized(self.text(ids, training=training))

    @property
    def logit_scale(self) -> keras.Variable:
        """The logarithm of the factor of the cosine, a float32 weight of shape `()`."""
        return self.similarity.logit_scale

    @property
    def logit_bias(self) -> keras.Variable | None:
        """The weight that is added to the logits, float32 of shape `()`, or None."""
        return self.similarity.logit_bias

    @property
    def image_shape(self) -> tuple:
        """Shape of one image in a batch."""
        return self.image.input_shape[1:]

    @property
    def preprocessing(self) -> Preprocessing:
        """Expected preprocessing of the images."""
        return self.image.preprocessing

    def get_config(self) -> dict[str, Any]:
        return {
            "image": keras.saving.serialize_keras_object(self.image),
            "text": keras.saving.serialize_keras_object(self.text),
            "scale": self.similarity.scale,
            "bias": self.similarity.bias,
            "name": self.name,
            "frozen": frozen_parts([self.similarity]),
        }

    from_config = classmethod(rebuild)


def _normalized(embeddings):
    """Returns embeddings `(B, E)` of length 1, computed in float32."""
    embeddings = ops.cast(embeddings, "float32")
    # The floor only avoids a division by zero.
    square = ops.sum(embeddings**2, axis=-1, keepdims=True)
    return embeddings * ops.rsqrt(ops.maximum(square, 1e-24))
