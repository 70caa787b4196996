"""Activations and dense layers of the MLP in a Transformer block."""

import math

import keras
from keras import ops

from keras_vit.layers.compilation import fused
from keras_vit.layers.token_dense import TokenDense


def _gelu_tanh(x):
    """Returns the tanh approximation of the GELU, and a function that computes its derivative."""
    scale = math.sqrt(2 / math.pi)
    cubic = 0.044715
    tanh = ops.tanh(scale * x * (1 + cubic * x * x))
    half = 0.5 * (1 + tanh)
    return x * half, lambda: half * (1 + scale * x * (1 - tanh) * (1 + 3 * cubic * x * x))


def _gelu_exact(x):
    """Returns the exact GELU, and a function that computes its derivative."""
    probability = 0.5 * (1 + ops.erf(x * math.sqrt(0.5)))
    return x * probability, lambda: probability + x * ops.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _with_derivative(formula):
    """Returns an activation that computes in float32 and has a custom gradient."""

    def forward(x):
        y, _ = formula(ops.cast(x, "float32"))
        return ops.cast(y, x.dtype)

    def backward(x, dy):
        _, derivative = formula(ops.cast(x, "float32"))
        return ops.cast(ops.cast(dy, "float32") * derivative(), x.dtype)

    @ops.custom_gradient
    def activation(x):
        # Fuse both here, because the engine's scope has ended when the gradient is computed.
        compute = fused(forward)
        compute_gradient = fused(backward)
        return compute(x), lambda dy: compute_gradient(x, dy)

    return activation


# The GELUs for training, by `approximate`.
_TRAINED = {True: _with_derivative(_gelu_tanh), False: _with_derivative(_gelu_exact)}


def gelu(x, approximate, training=False):
    """Computes the GELU or its tanh approximation."""
    if training and keras.backend.backend() == "tensorflow":
        # TensorFlow's own gradient would store five arrays of the size of `x`, and its bfloat16
        # operations are slow.
        return _TRAINED[approximate](x)
    # In inference, TensorFlow fuses this with the matmul before it.
    return ops.gelu(x, approximate=approximate)


# Activations between the two dense layers of the MLP, by name. "swiglu" uses a SiLU gate instead.
ACTIVATIONS = {
    "gelu_tanh": lambda x, training=False: gelu(x, True, training),
    "gelu": lambda x, training=False: gelu(x, False, training),
    "quick_gelu": lambda x, training=False: x * ops.sigmoid(1.702 * x),
}
MLPS = (*ACTIVATIONS, "swiglu")


def mlp_dense(units, name, dtype, use_bias=True, activate=None):
    """Builds a dense layer of an MLP, initialized as in the reference."""
    return TokenDense(
        units,
        activate=activate,
        use_bias=use_bias,
        kernel_initializer="glorot_uniform",
        bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
        dtype=dtype,
        name=name,
    )
