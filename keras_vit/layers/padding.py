"""Padding: tokens of zeros that give the sequences of a batch the same length.

Layers keep these tokens at zero.
"""

from keras import ops

from keras_vit.layers.base import serializable
from keras_vit.layers.layer_norm import LayerNormalization


def real_tokens(tokens):
    """Returns a mask that is False for padding tokens: `(B, N, D)` to bool `(B, N)`."""
    return ops.any(ops.not_equal(tokens, 0), axis=-1)


def with_zero_padding(values, mask):
    """Sets padding tokens of `(B, N, D)` to zero; the mask `(B, N)` is False for them."""
    return values * ops.cast(mask, values.dtype)[..., None]


@serializable
class MaskedLayerNormalization(LayerNormalization):
    """A LayerNorm that keeps padding at zero: `(B, N, D)` to `(B, N, D)`."""

    def call(self, tokens):
        return with_zero_padding(super().call(tokens), real_tokens(tokens))
