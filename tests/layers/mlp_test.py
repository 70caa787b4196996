"""Tests of the GELU of TensorFlow's training steps."""

import keras
import numpy as np
import pytest

from keras_vit.layers.compilation import compiling_for
from keras_vit.layers.mlp import gelu

from ..shared import to_numpy


def _with_gradient(function, x):
    """Returns `function(x)` and the gradient of its sum, computed with TensorFlow."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x)


@pytest.mark.one_backend
@pytest.mark.parametrize("dtype, tolerance", [("float32", 5e-6), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("approximate", [True, False])
def test_training_gelu_and_gradient_match_keras(approximate, dtype, tolerance):
    x = keras.ops.convert_to_tensor(np.linspace(-30, 30, 4001, dtype="float32"))
    reduced = keras.ops.cast(x, dtype)
    actual = _with_gradient(lambda x: gelu(x, approximate, training=True), reduced)
    x = keras.ops.cast(reduced, "float32")
    expected = _with_gradient(lambda x: keras.ops.gelu(x, approximate=approximate), x)
    for ours, theirs in zip(actual, expected):
        assert keras.backend.standardize_dtype(ours.dtype) == dtype
        np.testing.assert_allclose(to_numpy(ours), to_numpy(theirs), rtol=tolerance, atol=tolerance)


@pytest.mark.one_backend
def test_engine_can_fuse_the_gelu_and_its_gradient():
    fused = []

    def fuse(function):
        fused.append(function)
        return function

    with compiling_for(None, fuse=fuse):
        gelu(keras.ops.ones(3), approximate=True, training=True)
    # The gradient is computed outside of the scope, so it must be fused with the GELU.
    assert len(fused) == 2
