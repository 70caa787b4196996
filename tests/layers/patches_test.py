"""Tests of the layers that cut images into patches and project them to tokens."""

import keras
import numpy as np
import pytest

from keras_vit.layers import PatchEncoder, Patches

from ..shared import to_numpy


def test_patches_and_encoder_match_strided_convolution():
    images = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype("float32")
    encoder = PatchEncoder(5)
    tokens = to_numpy(encoder(Patches(4)(images)))
    kernel = keras.ops.reshape(encoder.kernel, (4, 4, 3, 5))
    grid = keras.ops.conv(images, kernel, strides=4, padding="valid", data_format="channels_last")
    expected = to_numpy(grid + encoder.bias).reshape(2, 6, 5)
    np.testing.assert_allclose(tokens, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 9, 8, 3), "valid heights are 8 and 12.*height=9, patch_size=4"),
        ((1, 8, 3, 3), "valid widths are 4.*width=3, patch_size=4"),
    ],
)
def test_rejects_sides_not_divisible_by_patch_size(shape, message):
    with pytest.raises(ValueError, match=message):
        Patches(4)(np.zeros(shape, "float32"))


@pytest.mark.parametrize("value", [0, 2.0, True])
def test_rejects_sizes_that_are_not_positive_integers(value):
    with pytest.raises(ValueError, match="an integer of 1 or more.*: patch_size="):
        Patches(value)
    with pytest.raises(ValueError, match="an integer of 1 or more.*: hidden_size="):
        PatchEncoder(value)
