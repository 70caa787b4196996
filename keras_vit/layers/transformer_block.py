"""The Transformer encoder block."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import KerasTensor, ops

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.layers.compilation import current_scope
from keras_vit.layers.dropout import Dropout, current_seeds, seed_scope
from keras_vit.layers.layer_norm import LayerNormalization
from keras_vit.layers.mlp import ACTIVATIONS, MLPS, mlp_dense
from keras_vit.layers.padding import real_tokens, with_zero_padding
from keras_vit.layers.tokens import LayerScale, first_token
from keras_vit.layers.validation import (
    check_choice,
    check_epsilon,
    check_positive_int,
    check_rank,
    check_rate,
)


@serializable
class TransformerBlock(BaseLayer):
    """A pre-norm encoder block with self-attention, MLP and residual connections.

    Maps `(B, N, D)` to `(B, N, D)`:

        z' = z + attention(norm(z))        (paper, eq. 2)
        z  = z' + mlp(norm(z'))            (paper, eq. 3)

    The arguments from `mlp` to `masked` support newer families. Their defaults reproduce the
    paper's block.

    Args:
        num_heads: number of attention heads; must divide D.
        mlp_dim: size of the MLP's hidden layer, 1 or more.
        dropout: dropout rate after the attention's output projection, and before and after the
            MLP's second dense layer, in [0, 1).
        attention_dropout: dropout rate of the attention scores, in [0, 1).
        stochastic_depth: probability of dropping a residual branch, in [0, 1). Each branch of each
            example is dropped independently. Kept branches are scaled up.
        first_token_only: whether to compute only the first token's output, `(B, 1, D)`. That token
            attends to all tokens.
        exact_gelu: whether the MLP uses the exact GELU instead of the reference's tanh
            approximation.
        epsilon: epsilon of all LayerNorms, above 0.
        relative_positions: whether attention uses relative positions, see `MultiHeadAttention`; N
            must be static.
        remat: whether to store only the block's input for the backward pass, which recomputes the
            block (gradient checkpointing). Inside `layers.dropout.seed_scope`, gradients stay exact
            under dropout, because the recomputation draws the same masks.
        mlp: "gelu_tanh", "gelu" (exact), "quick_gelu" (`x * sigmoid(1.702 x)`) or "swiglu"
            (`dense_2(silu(gate(x)) * dense_1(x))`); None for the GELU that `exact_gelu` selects.
        mlp_norm: whether to apply a LayerNorm before the MLP's second dense layer.
        mlp_bias: whether the MLP's dense layers have biases.
        attention_bias: letters of the attention projections that have a bias, from "qkvo" (query,
            key, value, output).
        qk_norm: whether to apply a LayerNorm to the queries and keys of each head.
        attention_norm: whether to apply a LayerNorm before the attention's output projection.
        rotary: arguments of the rotary position embedding, see `MultiHeadAttention`; None for no
            rotary embedding.
        layer_scale: initial value of the LayerScale on both residual branches; None for no
            LayerScale.
        masked: whether to treat all-zero tokens as padding, which stays zero and is not attended
            to.

    Raises:
        ValueError: an argument is out of range, `num_heads` does not divide D, the tokens do not
            have rank 3, or N is not static with `relative_positions`.

    Reference: paper equations 2 and 3; by default, matches the reference's encoder block (epsilon
        1e-6, tanh GELU).
    """

    attention_class = MultiHeadAttention

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        first_token_only: bool = False,
        exact_gelu: bool = False,
        epsilon: float = 1e-6,
        relative_positions: bool = False,
        remat: bool = False,
        mlp: str | None = None,
        mlp_norm: bool = False,
        mlp_bias: bool = True,
        attention_bias: str = "qkvo",
        qk_norm: bool = False,
        rotary: Mapping[str, Any] | None = None,
        layer_scale: float | None = None,
        attention_norm: bool = False,
        masked: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("mlp", mlp, (None, *MLPS))
        check_positive_int("num_heads", num_heads)
        check_positive_int("mlp_dim", mlp_dim)
        check_rate("dropout", dropout)
        check_rate("attention_dropout", attention_dropout)
        check_rate("stochastic_depth", stochastic_depth)
        check_epsilon(epsilon)
        self._keep_arguments(locals())

    def build(self, input_shape: tuple) -> None:
        check_rank("TransformerBlock", input_shape, "B, N, D")
        policy = {"dtype": self.dtype_policy}
        self.norm_1 = self._make_norm("norm_1")
        self.attention = self.attention_class(
            self.num_heads,
            self.attention_dropout,
            relative_positions=self.relative_positions,
            biases=self.attention_bias,
            qk_norm=self.qk_norm,
            epsilon=self.epsilon,
            rotary=self.rotary,
            attention_norm=self.attention_norm,
            name="attention",
            **policy,
        )
        self.norm_2 = self._make_norm("norm_2")
        activate = ACTIVATIONS.get(self.mlp or ("gelu" if self.exact_gelu else "gelu_tanh"))
        self.mlp_1 = mlp_dense(
            self.mlp_dim, "mlp_1", use_bias=self.mlp_bias, activate=activate, **policy
        )
        self.mlp_2 = mlp_dense(input_shape[-1], "mlp_2", use_bias=self.mlp_bias, **policy)
        self.drop = Dropout(self.dropout, name="drop", **policy)
        self.drop_path = Dropout(
            self.stochastic_depth, noise_shape=(None, 1, 1), name="drop_path", **policy
        )
        self._build_parts(input_shape)

    def _make_norm(self, name):
        return LayerNormalization(epsilon=self.epsilon, name=name, dtype=self.dtype_policy)

    def _build_parts(self, input_shape):
        """Adds the optional parts, and builds the layers that have weights."""
        policy = {"dtype": self.dtype_policy}
        self.mlp_gate = self.inner_norm = self.scale_1 = self.scale_2 = None
        parts = [self.norm_1, self.attention, self.norm_2, self.mlp_1]
        if self.mlp == "swiglu":
            self.mlp_gate = mlp_dense(self.mlp_dim, "mlp_gate", use_bias=self.mlp_bias, **policy)
            parts.append(self.mlp_gate)
        if self.layer_scale is not None:
            self.scale_1, self.scale_2 = (
                LayerScale(self.layer_scale, name=f"layer_scale_{i}", **policy) for i in (1, 2)
            )
            parts += [self.scale_1, self.scale_2]
        for layer in parts:
            layer.build(input_shape)
        hidden_shape = (*input_shape[:-1], self.mlp_dim)
        if self.mlp_norm:
            self.inner_norm = self._make_norm("mlp_norm")
            self.inner_norm.build(hidden_shape)
        self.mlp_2.build(hidden_shape)

    def call(self, tokens: KerasTensor, training: bool = False) -> KerasTensor:
        if self.remat and training:
            return self._rematerialized(tokens)
        return self.encode(tokens, training, self.first_token_only)

    def encode(
        self,
        tokens: KerasTensor,
        training: bool = False,
        first_token_only: bool = False,
        score_change: KerasTensor | None = None,
    ) -> KerasTensor:
        """Computes the block without rematerialization.

        `score_change` is added to the attention scores after the softmax.
        """
        real = real_tokens(tokens) if self.masked else None
        x = self.norm_1(tokens)
        queries = None
        if first_token_only:
            queries = first_token(x)
            tokens = first_token(tokens)
        x = self.attention(
            x, queries=queries, training=training, score_change=score_change, real=real
        )
        x = self.drop(x, training=training)
        x = x if self.scale_1 is None else self.scale_1(x)
        tokens = tokens + self.drop_path(x, training=training)  # eq. 2
        x = self.apply_mlp(self.norm_2(tokens), training)
        x = x if self.scale_2 is None else self.scale_2(x)
        tokens = tokens + self.drop_path(x, training=training)  # eq. 3
        if real is None:
            return tokens
        return with_zero_padding(tokens, real[:, :1] if first_token_only else real)

    def attention_scores(self, tokens: KerasTensor) -> KerasTensor:
        """Computes the attention scores after the softmax.

        Maps `(B, N, D)` to float32 `(B, heads, N, N)`.
        """
        real = real_tokens(tokens) if self.masked else None
        return self.attention.scores_of(self.norm_1(tokens), real)

    def _rematerialized(self, tokens):
        """Computes `encode` in training, and recomputes it in the backward pass."""
        # `keras.RematScope` fails on functional models inside `tf.function`. In its recomputation,
        # Keras' dropout also draws different masks than in the forward pass, which would silently
        # make gradients wrong.
        seeds = current_seeds()
        first = seeds.count if seeds else 0
        compile_scope = current_scope()

        def encode(tokens):
            if seeds:
                seeds.count = first  # the recomputation draws the same seeds
            # `tf.recompute_grad` may call this in another thread or after the scopes have ended.
            with seed_scope(seeds), compile_scope():
                return self.encode(tokens, training=True, first_token_only=self.first_token_only)

        return keras.remat(encode)(tokens)

    def apply_mlp(self, x: KerasTensor, training: bool = False) -> KerasTensor:
        """Computes the MLP, with dropout before and after its second dense layer."""
        hidden = self.mlp_1(x, training=training)  # (B, N, mlp_dim)
        if self.mlp_gate is not None:
            hidden = ops.silu(self.mlp_gate(x)) * hidden
        if self.inner_norm is not None:
            hidden = self.inner_norm(hidden)
        x = self.mlp_2(self.drop(hidden, training=training))  # (B, N, D)
        return self.drop(x, training=training)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, tokens, hidden_size = input_shape
        return (batch, 1 if self.first_token_only else tokens, hidden_size)

    def multiply_accumulates(self, input_shape: tuple, all_tokens: bool = False) -> int:
        """Returns the multiply-accumulates of one example for the shape `(B, N, D)`.

        If `all_tokens` is True, counts the outputs of all tokens even if `first_token_only` is set.
        """
        batch, tokens, hidden_size = input_shape
        outputs = 1 if self.first_token_only and not all_tokens else tokens
        attention = self.attention.multiply_accumulates(input_shape, (batch, outputs, hidden_size))
        matrices = 3 if self.mlp == "swiglu" else 2
        return attention + matrices * outputs * hidden_size * self.mlp_dim
