"""Tests of the LayerNorm of Transformer blocks."""

import keras
import numpy as np
import pytest

from keras_vit.layers.compilation import compiling_for
from keras_vit.layers.layer_norm import LayerNormalization

from ..shared import to_numpy


@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 2e-6), ("mixed_bfloat16", 2e-2), ("mixed_float16", 2e-2)]
)
def test_form_for_tpus_equals_keras(dtype, tolerance):
    layer = LayerNormalization(epsilon=1e-3, dtype=dtype)
    random = np.random.default_rng(0)
    # At small scales, the epsilon matters. At large ones, the squares overflow float16.
    scale = 10.0 ** random.uniform(-3, 3, (2, 5, 1))
    tokens = keras.ops.cast(scale * random.normal(1, 1, (2, 5, 64)), layer.compute_dtype)
    layer.build(tokens.shape)
    layer.gamma.assign(random.normal(size=64))
    layer.beta.assign(random.normal(size=64))
    expected = layer(tokens)
    with compiling_for("tpu"):
        actual = layer(tokens)
    assert keras.backend.standardize_dtype(actual.dtype) == layer.compute_dtype
    np.testing.assert_allclose(to_numpy(actual), to_numpy(expected), rtol=tolerance, atol=tolerance)


def test_equal_features_give_beta_on_tpus():
    layer = LayerNormalization(epsilon=1e-6)
    # The mean of these features is exact, but rounding of their squares makes
    # `mean(x**2) - mean(x)**2` negative.
    tokens = np.full((1, 2, 768), 1001.5, "float32")
    layer.build(tokens.shape)
    beta = np.linspace(0, 1, 768)
    layer.beta.assign(beta)
    with compiling_for("tpu"):
        outputs = to_numpy(layer(tokens))
    np.testing.assert_allclose(outputs[0, 0], beta, atol=1e-6)
