"""Multi-head attention pooling."""

from typing import Any

import keras
from keras import KerasTensor, ops

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.layers.mlp import ACTIVATIONS, mlp_dense
from keras_vit.layers.padding import real_tokens
from keras_vit.layers.validation import (
    check_choice,
    check_epsilon,
    check_positive_int,
    check_rank,
)


@serializable
class AttentionPooling(BaseLayer):
    """Pools tokens with a learned query: `(B, N, D)` to `(B, D)`.

    The output is `x + mlp(norm(x))` with `x = attention(query, tokens)`.

    Args:
        num_heads: number of attention heads; must divide D.
        mlp_dim: size of the MLP's hidden layer, 1 or more.
        exact_gelu: whether the MLP uses the exact GELU instead of the reference's tanh
            approximation. Ignored if `mlp` is set.
        epsilon: epsilon of the LayerNorm, above 0.
        masked: whether to treat all-zero tokens as padding, which the learned query does not attend
            to.
        mlp: activation of the MLP, "gelu", "gelu_tanh" or "quick_gelu"; None for the GELU that
            `exact_gelu` selects.

    Raises:
        ValueError: an argument is out of range, `num_heads` does not divide D, or the tokens do not
            have rank 3.

    Reference: Zhai et al., "Scaling Vision Transformers"; big_vision's MAPHead.
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        exact_gelu: bool = False,
        epsilon: float = 1e-6,
        masked: bool = False,
        mlp: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_int("num_heads", num_heads)
        check_positive_int("mlp_dim", mlp_dim)
        check_choice("mlp", mlp, (None, *ACTIVATIONS))
        check_epsilon(epsilon)
        self._keep_arguments(locals())

    def build(self, input_shape: tuple) -> None:
        check_rank("AttentionPooling", input_shape, "B, N, D")
        policy = {"dtype": self.dtype_policy}
        hidden_size = input_shape[2]
        self.probe = self.add_weight(
            name="probe", shape=(1, 1, hidden_size), initializer="glorot_uniform"
        )
        self.attention = MultiHeadAttention(self.num_heads, name="attention", **policy)
        self.norm = keras.layers.LayerNormalization(epsilon=self.epsilon, name="norm", **policy)
        activate = ACTIVATIONS[self.mlp or ("gelu" if self.exact_gelu else "gelu_tanh")]
        self.mlp_1 = mlp_dense(self.mlp_dim, "mlp_1", activate=activate, **policy)
        self.mlp_2 = mlp_dense(hidden_size, "mlp_2", **policy)
        self.attention.build(input_shape)
        for layer in (self.norm, self.mlp_1):
            layer.build((None, 1, hidden_size))
        self.mlp_2.build((None, 1, self.mlp_dim))

    def call(self, tokens: KerasTensor) -> KerasTensor:
        batch, _, hidden_size = ops.shape(tokens)
        probe = ops.broadcast_to(self.probe, (batch, 1, hidden_size))
        real = real_tokens(tokens) if self.masked else None
        x = self.attention(tokens, queries=probe, real=real)  # (B, 1, D)
        return ops.squeeze(x + self.mlp_2(self.mlp_1(self.norm(x))), axis=1)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return (input_shape[0], input_shape[2])

    def multiply_accumulates(self, input_shape: tuple) -> int:
        """Returns the multiply-accumulates of one example for the shape `(B, N, D)`."""
        hidden_size = input_shape[2]
        attention = self.attention.multiply_accumulates(input_shape, (None, 1, hidden_size))
        return attention + 2 * hidden_size * self.mlp_dim
