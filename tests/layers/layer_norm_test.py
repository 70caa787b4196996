"""Tests of the LayerNorm of Transformer blocks."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.compilation import compiling_for
from keras_vit.layers.layer_norm import LayerNormalization


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("mixed_bfloat16", 2e-2)])
def test_form_for_tpus_equals_keras(dtype, tolerance):
    layer = LayerNormalization(epsilon=1e-3, dtype=dtype)
    random = np.random.default_rng(0)
    scale = 10.0 ** random.uniform(-3, 2, (2, 5, 1))  # small ones make epsilon matter
    tokens = (scale * random.normal(1, 1, (2, 5, 64))).astype("float32")
    layer.build(tokens.shape)
    layer.gamma.assign(random.normal(size=64))
    layer.beta.assign(random.normal(size=64))
    expected = layer(tokens)
    with compiling_for("tpu"):
        actual = layer(tokens)
    assert keras.backend.standardize_dtype(actual.dtype) == layer.compute_dtype
    values = [ops.convert_to_numpy(ops.cast(output, "float32")) for output in (actual, expected)]
    np.testing.assert_allclose(*values, rtol=tolerance, atol=tolerance)


def test_equal_features_give_beta_on_tpus():
    layer = LayerNormalization(epsilon=1e-6)
    tokens = np.full((1, 2, 768), 1000.3, "float32")  # rounding can make the variance negative
    layer.build(tokens.shape)
    layer.beta.assign(np.linspace(0, 1, 768))
    with compiling_for("tpu"):
        outputs = ops.convert_to_numpy(layer(tokens))
    # `x - mean` has a rounding error of about 1e-4, which the division by 1e-3 enlarges.
    np.testing.assert_allclose(outputs[0, 0], np.linspace(0, 1, 768), atol=0.5)
