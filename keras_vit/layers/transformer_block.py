"""One block of the encoder."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.dropout import Dropout, current_seeds, seed_scope
from keras_vit.layers.mlp import ACTIVATIONS, MLPS, mlp_dense
from keras_vit.layers.naflex import real_tokens, with_zero_padding
from keras_vit.layers.rotary import check_rotary
from keras_vit.layers.tokens import LayerScale
from keras_vit.layers.validation import check_choice, check_positive_int, check_rank, check_rate


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(keras.layers.Layer):
    """A pre-norm encoder block, self-attention and an MLP with residual connections: `(B, N, D)` to `(B, N, D)`.

        z' = z + attention(norm(z))        (paper, eq. 2)
        z  = z' + mlp(norm(z'))            (paper, eq. 3)

    The arguments from `mlp` on are parts that later families have; their defaults are the paper's block.

    Args:
        num_heads: number of attention heads; must divide D.
        mlp_dim: size of the MLP's hidden layer, 1 or more.
        dropout: rate after the attention's projection, after GELU and after the MLP, in [0, 1).
        attention_dropout: rate on the attention scores, in [0, 1).
        stochastic_depth: probability of dropping a residual branch, drawn for each example and branch; a kept branch
            is divided by the probability of keeping it. In [0, 1).
        first_token_only: whether to return only the first token, `(B, 1, D)`. It attends to all tokens, so it is the
            same token, but queries, projection and MLP are not computed for the others.
        exact_gelu: whether the MLP uses the exact GELU instead of its tanh form, which is the reference's.
        epsilon: of both LayerNorms, above 0.
        relative_positions: whether attention has relative positions, as `MultiHeadAttention` describes them; N is then
            static.
        remat: whether to keep only the block's input for the gradient, in training, and to compute the block a second
            time in the backward pass (gradient checkpointing). The gradients stay exact under dropout inside
            `layers.dropout.seed_scope`, where the second computation draws the masks of the first.
        mlp: "gelu_tanh", "gelu" (exact), "quick_gelu" (`x * sigmoid(1.702 x)`) or "swiglu", `dense_2(silu(gate(x)) *
            dense_1(x))`; None for a GELU as `exact_gelu` says.
        mlp_norm: whether a LayerNorm stands before the MLP's second dense layer.
        mlp_bias: whether the MLP's dense layers have biases.
        attention_bias: which projections of the attention have a bias, letters of "qkvo".
        qk_norm: whether queries and keys of each head go through a LayerNorm.
        attention_norm: whether the values of all heads go through a LayerNorm before the attention's projection.
        rotary: None, or rotary positions of patches, as `MultiHeadAttention` takes them.
        layer_scale: initial value of learned factors on both residual branches; None for none.
        masked: whether tokens of zeros are padding, which no token attends to and which stays zero.

    Raises:
        ValueError: an argument is out of range, `num_heads` does not divide D, or the tokens are not of rank 3.

    Reference: paper equations 2 and 3; equal to the reference's encoder block (LayerNorm epsilon 1e-6, tanh GELU).
    """

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
        if mlp is not None:
            check_choice("mlp", mlp, MLPS)
        check_positive_int("num_heads", num_heads)
        check_positive_int("mlp_dim", mlp_dim)
        check_rate("dropout", dropout)
        check_rate("attention_dropout", attention_dropout)
        check_rate("stochastic_depth", stochastic_depth)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.stochastic_depth = stochastic_depth
        self.first_token_only = first_token_only
        self.exact_gelu = exact_gelu
        self.epsilon = epsilon
        self.relative_positions = relative_positions
        self.remat = remat
        self.mlp_kind = mlp
        self.mlp_norm = mlp_norm
        self.mlp_bias = mlp_bias
        self.attention_bias = attention_bias
        self.qk_norm = qk_norm
        self.rotary = check_rotary(rotary)
        self.layer_scale = layer_scale
        self.attention_norm = attention_norm
        self.masked = masked

    def build(self, input_shape: tuple) -> None:
        check_rank("TransformerBlock", input_shape, "B, N, D")
        policy = {"dtype": self.dtype_policy}
        hidden_size = input_shape[-1]
        self.norm_1 = keras.layers.LayerNormalization(epsilon=self.epsilon, name="norm_1", **policy)
        self.attention = MultiHeadAttention(
            self.num_heads,
            self.attention_dropout,
            self.relative_positions,
            biases=self.attention_bias,
            qk_norm=self.qk_norm,
            epsilon=self.epsilon,
            rotary=self.rotary,
            out_norm=self.attention_norm,
            name="attention",
            **policy,
        )
        self.norm_2 = keras.layers.LayerNormalization(epsilon=self.epsilon, name="norm_2", **policy)
        self.mlp_1 = mlp_dense(self.mlp_dim, "mlp_1", use_bias=self.mlp_bias, **policy)
        self.mlp_2 = mlp_dense(hidden_size, "mlp_2", use_bias=self.mlp_bias, **policy)
        self.drop = Dropout(self.dropout, name="drop", **policy)
        self.drop_path = Dropout(self.stochastic_depth, noise_shape=(None, 1, 1), name="drop_path", **policy)
        self.mlp_gate = self.inner_norm = self.scale_1 = self.scale_2 = None
        parts = [self.norm_1, self.attention, self.norm_2, self.mlp_1]
        if self.mlp_kind == "swiglu":
            self.mlp_gate = mlp_dense(self.mlp_dim, "mlp_gate", use_bias=self.mlp_bias, **policy)
            parts.append(self.mlp_gate)
        if self.layer_scale is not None:
            self.scale_1, self.scale_2 = (
                LayerScale(self.layer_scale, name=f"layer_scale_{i}", **policy) for i in (1, 2)
            )
            parts += [self.scale_1, self.scale_2]
        for layer in parts:
            layer.build(input_shape)
        if self.mlp_norm:
            self.inner_norm = keras.layers.LayerNormalization(epsilon=self.epsilon, name="mlp_norm", **policy)
            self.inner_norm.build((*input_shape[:-1], self.mlp_dim))
        self.mlp_2.build((*input_shape[:-1], self.mlp_dim))
        self.built = True

    def call(self, tokens: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        if self.remat and training:
            return self._rematerialized(tokens)
        return self.encode(tokens, training, self.first_token_only)

    def encode(
        self,
        tokens: keras.KerasTensor,
        training: bool = False,
        first_token_only: bool = False,
        score_change: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        """What `call` computes, without rematerialization, for every token or for the first one; `score_change` is
        that of the attention."""
        real = real_tokens(tokens) if self.masked else None
        x = self.norm_1(tokens)
        queries = None
        if first_token_only:
            queries, tokens = x[:, :1], tokens[:, :1]
        x = self.attention(x, queries=queries, training=training, score_change=score_change, real=real)
        x = self.drop(x, training=training)
        x = x if self.scale_1 is None else self.scale_1(x)
        tokens = tokens + self.drop_path(x, training=training)  # eq. 2
        x = self.mlp(self.norm_2(tokens), training=training)
        x = x if self.scale_2 is None else self.scale_2(x)
        tokens = tokens + self.drop_path(x, training=training)  # eq. 3
        return tokens if real is None else with_zero_padding(tokens, real)

    def _rematerialized(self, tokens):
        # Not `keras.RematScope`: it fails on a functional model inside `tf.function`, and the masks of Keras' own
        # dropout differ between the two computations, which makes gradients silently wrong.
        seeds = current_seeds()
        first = seeds.count if seeds else 0

        def encode(tokens):
            if seeds:
                seeds.count = first  # the second computation draws the seeds of the first
            # `tf.recompute_grad` may run the second one in another thread, or after the scope has ended.
            with seed_scope(seeds):
                return self.encode(tokens, training=True, first_token_only=self.first_token_only)

        return keras.remat(encode)(tokens)

    def mlp(self, x: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        """Computes the MLP, with dropout after both dense layers: `(B, N, D)` to `(B, N, D)`."""
        hidden = self.mlp_1(x)  # (B, N, mlp_dim)
        if self.mlp_gate is not None:
            hidden = ops.silu(self.mlp_gate(x)) * hidden
        else:
            hidden = ACTIVATIONS[self.mlp_kind or ("gelu" if self.exact_gelu else "gelu_tanh")](hidden)
        if self.inner_norm is not None:
            hidden = self.inner_norm(hidden)
        x = self.mlp_2(self.drop(hidden, training=training))  # (B, N, D)
        return self.drop(x, training=training)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, tokens, hidden_size = input_shape
        return (batch, 1 if self.first_token_only else tokens, hidden_size)

    def multiply_accumulates(self, input_shape: tuple, all_tokens: bool = False) -> int:
        """Multiply-accumulates of one example; the shape is `(B, N, D)`.

        Args:
            input_shape: see above.
            all_tokens: whether to count the outputs of all tokens, even with `first_token_only`.
        """
        batch, tokens, hidden_size = input_shape
        outputs = 1 if self.first_token_only and not all_tokens else tokens
        attention = self.attention.multiply_accumulates(input_shape, (batch, outputs, hidden_size))
        matrices = 3 if self.mlp_kind == "swiglu" else 2
        return attention + matrices * outputs * hidden_size * self.mlp_dim

    def get_config(self) -> dict[str, Any]:
        names = (
            *("num_heads", "mlp_dim", "dropout", "attention_dropout", "stochastic_depth", "first_token_only"),
            *("exact_gelu", "epsilon", "relative_positions", "remat", "mlp_norm", "mlp_bias", "attention_bias"),
            *("qk_norm", "layer_scale", "attention_norm", "masked"),
        )
        config = {name: getattr(self, name) for name in names}
        rotary = None if self.rotary is None else dict(self.rotary)
        return {**super().get_config(), **config, "mlp": self.mlp_kind, "rotary": rotary}
