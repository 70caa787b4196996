"""The encoder block of text models in which a token attends only to itself and earlier tokens."""

from keras import ops

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.base import serializable
from keras_vit.layers.transformer_block import TransformerBlock


class CausalAttention(MultiHeadAttention):
    """Multi-head self-attention to a token itself and to the tokens before it."""

    def visible(self, queries, keys, real=None):
        earlier = ops.tril(ops.ones((queries, keys), "bool"))[None, None]
        return earlier if real is None else earlier & super().visible(queries, keys, real)

    def _attend_without_scores(self, query, key, value, real=None):
        # Texts are short, so chunks or flash attention would not be faster.
        return self._attend(query, key, value, real=real)


@serializable
class CausalTransformerBlock(TransformerBlock):
    """A `TransformerBlock` with a causal mask: each token attends to itself and earlier tokens.

    Call it with a static number of tokens, `(B, N, D)`.

    Reference: the text tower of CLIP (Radford et al., 2021).
    """

    attention_class = CausalAttention
