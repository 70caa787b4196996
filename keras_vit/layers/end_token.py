"""Pooling of a text at its end token."""

from keras import ops

from keras_vit.layers.base import BaseLayer, serializable


@serializable
class EndTokenPooling(BaseLayer):
    """Selects the token at the first end id of each text.

    Maps tokens `(B, N, D)` and ids `(B, N)` to `(B, D)`.

    Args:
        end_id: id of the end token; a text without it is pooled at position 0. None for the largest
            id of each text.

    Reference: `CLIPTextModel` of transformers.
    """

    def __init__(self, end_id=None, **kwargs):
        super().__init__(**kwargs)
        self._keep_arguments(locals())

    def call(self, tokens, ids):
        end = ops.max(ids, axis=1, keepdims=True) if self.end_id is None else self.end_id
        # Count the tokens before the first end token, because `argmax` of equal values is not
        # always the first one.
        is_before = ops.cumprod(ops.cast(ops.not_equal(ids, end), "int32"), axis=1)
        length = tokens.shape[1]
        # Without an end token, the count is `length`, which stands for position 0.
        position = ops.sum(is_before, axis=1, keepdims=True) % length
        is_end = ops.cast(ops.equal(ops.arange(length)[None], position), tokens.dtype)
        return ops.sum(tokens * is_end[:, :, None], axis=1)

    def compute_output_shape(self, tokens_shape, ids_shape):
        return (tokens_shape[0], tokens_shape[2])
