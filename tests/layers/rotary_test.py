"""Tests of rotary position embeddings, which families also compare with other libraries."""

import numpy as np
import pytest

from keras_vit.layers.rotary import rotary_table, rotate

from ..shared import to_numpy

GRID = (2, 3)


def _halves(values):
    return np.split(values, 2, axis=-1)


def _neighbors(values):
    return values[..., ::2], values[..., 1::2]


@pytest.mark.parametrize(("style", "split"), [("half", _halves), ("pairs", _neighbors)])
def test_rotation_multiplies_pairs_of_values_as_complex_numbers(style, split):
    x = np.random.default_rng(0).normal(size=(2, 7, 3, 8)).astype("float32")
    cosines, sines = rotary_table(8, grid=GRID, prefix=1, style=style)
    real, imaginary = split(x)
    turns = split(cosines)[0] + 1j * split(sines)[0]
    expected = (real + 1j * imaginary) * turns[:, None]
    rotated = split(to_numpy(rotate(x, cosines, sines, style)))
    np.testing.assert_allclose(rotated, [expected.real, expected.imag], atol=1e-5)


def test_indices_may_start_at_an_offset_with_the_columns_first():
    cosines, sines = rotary_table(
        8, grid=GRID, prefix=1, style="pairs", coordinates="index", order="xy", offset=1.0
    )
    y, x = np.mgrid[1:3, 1:4].reshape(2, 6, 1)
    frequencies = [1, 0.1]  # 100 ** (-k / 2)
    angles = np.concatenate([x * frequencies, y * frequencies], axis=1)
    # The token before the patches is not rotated.
    angles = np.repeat(np.pad(angles, ((1, 0), (0, 0))), 2, axis=1)
    np.testing.assert_allclose([cosines, sines], [np.cos(angles), np.sin(angles)], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_size": 6}, "`head_size` must be a multiple of 4"),
        ({"theta": 0.0}, "`theta` must be above 0"),
        ({"style": "thirds"}, "`style` must be one of"),
        ({"reference": 16}, "require coordinates='index'"),
        ({"offset": 0.5}, "require coordinates='index'"),
    ],
    ids=str,
)
def test_rejects_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        rotary_table(**{"head_size": 8, "grid": GRID, **options})
