"""Activations and dense layers of the MLP in a Transformer block."""

import keras
from keras import ops

from keras_vit.layers.token_dense import TokenDense

# Activations between the two dense layers. "swiglu" uses a SiLU gate instead.
ACTIVATIONS = {
    "gelu_tanh": lambda x: ops.gelu(x, approximate=True),
    "gelu": lambda x: ops.gelu(x, approximate=False),
    "quick_gelu": lambda x: x * ops.sigmoid(1.702 * x),
}
MLPS = (*ACTIVATIONS, "swiglu")


def mlp_dense(units, name, dtype, use_bias=True):
    """Builds a dense layer of an MLP, initialized as in the reference: `(B, N, D)` to `(B, N, units)`."""
    return TokenDense(
        units,
        use_bias=use_bias,
        kernel_initializer="glorot_uniform",
        bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
        dtype=dtype,
        name=name,
    )
