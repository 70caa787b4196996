"""Tests of the checks of the layers that cut images into patches and project them to tokens."""

import numpy as np
import pytest

from keras_vit.layers import PatchEncoder, Patches


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
    any_size = Patches(4)
    any_size.build((None, None, None, 3))
    with pytest.raises(ValueError, match=message):
        any_size(np.zeros(shape, "float32"))


@pytest.mark.parametrize("value", [0, 2.0, True])
def test_rejects_sizes_that_are_not_positive_integers(value):
    with pytest.raises(ValueError, match="an integer of 1 or more.*: patch_size="):
        Patches(value)
    with pytest.raises(ValueError, match="an integer of 1 or more.*: hidden_size="):
        PatchEncoder(value)
