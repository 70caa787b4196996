"""Class and register tokens, LayerScale, and DeiT's head for class and distillation tokens."""

from typing import Any

import keras
from keras import KerasTensor, ops

from keras_vit.layers import compilation
from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.layers.validation import check_positive_int, check_rank


@serializable
class ClassToken(BaseLayer):
    """Prepends a learned token to each sequence: `(B, N, D)` to `(B, 1+N, D)`.

    Reference: x_class in equation 1 of the paper. It is initialized to zeros, like `cls` in
        `vit_jax`.
    """

    def build(self, input_shape: tuple) -> None:
        check_rank("ClassToken", input_shape, "B, N, D")
        self.cls = self.add_weight(name="cls", shape=(1, 1, input_shape[-1]), initializer="zeros")

    def call(self, tokens: KerasTensor) -> KerasTensor:
        batch, _, hidden_size = ops.shape(tokens)
        return ops.concatenate(
            [ops.broadcast_to(self.cls, (batch, 1, hidden_size)), tokens], axis=1
        )

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, tokens, hidden_size = input_shape
        return (batch, None if tokens is None else tokens + 1, hidden_size)


def first_token(tokens):
    """Returns the first token: `(B, N, D)` to `(B, 1, D)`."""
    if compilation.platform() != "tpu":
        return tokens[:, :1]
    # XLA would choose the memory layout of the slice for the tokens of all blocks, and copy their
    # queries, keys and values to another layout. A sum leaves the layout of the tokens alone.
    is_first = ops.reshape(ops.arange(ops.shape(tokens)[1]) == 0, (1, -1, 1))
    return ops.sum(ops.where(is_first, tokens, 0), axis=1, keepdims=True)


@serializable
class RegisterTokens(BaseLayer):
    """Inserts learned tokens without position embeddings into each sequence.

    Maps `(B, N, D)` to `(B, N+count, D)`.

    Args:
        count: number of register tokens, 1 or more.
        after: number of tokens before the register tokens, such as 1 for a class token.

    Raises:
        ValueError: `count` is not a positive integer, `after` is negative, or the tokens do not
            have rank 3.

    Reference: Darcet et al., "Vision Transformers Need Registers"; initialized as in DINOv3
        (normal, standard deviation 0.02).
    """

    def __init__(self, count: int, after: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive_int("count", count)
        if after < 0:
            raise ValueError(f"`after` must be 0 or more. Received: after={after}")
        self._keep_arguments(locals())

    def build(self, input_shape: tuple) -> None:
        check_rank("RegisterTokens", input_shape, "B, N, D")
        self.register_tokens = self.add_normal_weight(
            "register_tokens", (1, self.count, input_shape[-1])
        )

    def call(self, tokens: KerasTensor) -> KerasTensor:
        batch, _, hidden_size = ops.shape(tokens)
        registers = ops.broadcast_to(self.register_tokens, (batch, self.count, hidden_size))
        parts = [registers, tokens]
        if self.after:
            parts = [tokens[:, : self.after], registers, tokens[:, self.after :]]
        return ops.concatenate(parts, axis=1)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, tokens, hidden_size = input_shape
        return (batch, None if tokens is None else tokens + self.count, hidden_size)


@serializable
class LayerScale(BaseLayer):
    """Multiplies each value of a token by a learned factor: `(..., D)` to `(..., D)`.

    Args:
        init: initial value of the factors.

    Reference: Touvron et al., "Going deeper with Image Transformers".
    """

    def __init__(self, init: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._keep_arguments(locals())

    def build(self, input_shape: tuple) -> None:
        self.scale = self.add_weight(
            name="scale",
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.init),
        )

    def call(self, inputs: KerasTensor) -> KerasTensor:
        return inputs * self.scale


@serializable
class DistilledHead(keras.layers.Dense):
    """Averages two linear heads, one on each half of the input: `(B, 2F)` to `(B, units)`.

    Reference: Touvron et al., "Training data-efficient image transformers" (DeiT).
    """

    # `kernel` and `bias` belong to the head of the class token, which is the first half of the
    # input. `distillation` is the head of the distillation token, which is the second half.

    def build(self, input_shape):
        half = (*input_shape[:-1], input_shape[-1] // 2)
        self.distillation = keras.layers.Dense(
            self.units,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name="distillation",
        )
        self.distillation.build(half)
        super().build(half)
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: input_shape[-1]})

    def call(self, inputs, training=None):
        class_logits, distillation_logits = self.both(inputs)
        return self.activation((class_logits + distillation_logits) / 2)

    def both(self, inputs):
        """Returns the logits of the class token and of the distillation token."""
        first, second = (ops.cast(x, self.compute_dtype) for x in ops.split(inputs, 2, axis=-1))
        return ops.matmul(first, self.kernel) + self.bias, self.distillation(second)
