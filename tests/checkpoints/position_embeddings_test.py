"""Tests of resampling position embeddings between grids, with and without a row for the class
token."""

import numpy as np
import pytest

from keras_vit import checkpoints
from keras_vit.checkpoints.names import CLASS_TOKEN, POSITIONS
from keras_vit.checkpoints.position_embeddings import RULES, resample, source_grid

from ..shared import read_arrays
from .helpers import VIT_TOKEN, assert_matches_logits, small_model, weights_of

pytestmark = pytest.mark.one_backend  # positions are resampled in numpy


@pytest.mark.parametrize(
    "rows, token, target, given, expected",
    [
        (196, False, (24, 24), None, ((14, 14), False)),
        (196, True, (24, 24), None, ((14, 14), False)),  # a class token without a position
        (25, True, (4, 6), None, ((4, 6), True)),
        (24, True, (4, 6), None, ((4, 6), False)),
        (17, True, (2, 8), None, ((4, 4), True)),  # a square wins over the target
        (17, True, (2, 8), (2, 8), ((2, 8), True)),
        (24, False, (5, 5), None, None),
        (17, True, (4, 4), (3, 5), None),
        (1, True, (4, 4), None, ((1, 1), False)),
        (0, True, (4, 4), None, None),
    ],
)
def test_source_grid_is_inferred(rows, token, target, given, expected):
    assert source_grid(rows, token, target, given) == expected


GRIDS = [(4, 6), (6, 4), (7, 12), (14, 24), (14, 7)]


@pytest.mark.parametrize("class_token", [0, 1])
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_square_grids_match_the_reference(old, new, class_token, golden):
    arrays = golden("posemb_resize")
    key = f"{old}_{new}_tok{class_token}"
    result = resample(arrays[f"in_{key}"], (old, old), (new, new))
    np.testing.assert_allclose(result, arrays[f"out_{key}"], atol=2e-7)
    assert result.dtype == np.float32


@pytest.mark.parametrize("grid", [(3, 4), (5, 9), (8, 7)])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "zoom"])
def test_interpolation_rules_match_pytorch(rule, grid, golden):
    arrays = golden("families/resampling")
    result = resample(arrays["positions"], (5, 7), grid, rule)
    rows, columns = grid
    patches = result[0, 1:].reshape(rows, columns, -1)
    np.testing.assert_allclose(patches, arrays[f"{rule}_{rows}x{columns}"], atol=5e-6)
    np.testing.assert_array_equal(result[:, 0], arrays["positions"][:, 0])


def linear_ramps(rows, columns):
    """Returns a grid of values that grow with the rows, with the columns, and with both."""
    y, x = np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 1, columns), indexing="ij")
    return np.stack([y, x, 2 * y - 3 * x + 1], axis=-1).reshape(1, rows * columns, 3)


@pytest.mark.parametrize("old, new", [((3, 5), (7, 2)), ((2, 8), (4, 4)), ((28, 28), (48, 48))])
def test_resampling_preserves_linear_ramps(old, new):
    result = resample(linear_ramps(*old), old, new)
    np.testing.assert_allclose(result, linear_ramps(*new), atol=1e-6)


def test_single_rows_and_columns_keep_the_values_of_the_other_axis():
    one_column = resample(linear_ramps(6, 6), (6, 6), (6, 1))
    np.testing.assert_allclose(one_column[..., 0], linear_ramps(6, 1)[..., 0], atol=1e-6)
    three_rows = resample(linear_ramps(1, 4), (1, 4), (3, 4))
    np.testing.assert_allclose(three_rows[..., 1], linear_ramps(3, 4)[..., 1], atol=1e-6)


def test_resampling_to_the_same_grid_is_identity():
    positions = np.random.default_rng(0).normal(size=(1, 13, 4)).astype("float32")
    np.testing.assert_array_equal(resample(positions, (3, 4), (3, 4)), positions)


def test_saved_file_stores_a_rectangular_grid(tmp_path):
    wide = small_model(input_shape=(16, 64, 3))  # a 2x8 grid: 16 patches, like a 4x4 grid
    wide.get_layer("head").kernel.assign(np.ones((64, 10)))
    checkpoints.save(wide, tmp_path / "wide.npz")
    positions = weights_of(wide)[POSITIONS]
    restored = small_model(input_shape=(16, 64, 3), weights=tmp_path / "wide.npz")
    np.testing.assert_array_equal(weights_of(restored)[POSITIONS], positions)
    square = small_model()
    report = checkpoints.load(square, tmp_path / "wide.npz")
    assert report.resampled == [(POSITIONS, (1, 17, 64), ((2, 8), (4, 4)))]
    assert not report.unused
    expected = resample(positions, (2, 8), (4, 4))
    np.testing.assert_array_equal(weights_of(square)[POSITIONS], expected)


def test_source_grid_can_be_specified():
    model = small_model()
    report = checkpoints.load(model, VIT_TOKEN, source_grid=(2, 8))
    assert report.resampled[0][2] == ((2, 8), (4, 4))
    with pytest.raises(ValueError, match="Set `source_grid="):
        checkpoints.load(model, VIT_TOKEN, source_grid=(3, 5))


def test_class_token_position_is_added_to_the_token():
    model = small_model(weights=VIT_TOKEN, class_token_position=False)
    arrays = read_arrays(VIT_TOKEN)
    expected = arrays[CLASS_TOKEN] + arrays[POSITIONS][:, :1]
    np.testing.assert_array_equal(weights_of(model)[CLASS_TOKEN], expected)
    assert_matches_logits(model, "vit_token")


def test_class_token_without_position_gets_zero_row(tmp_path):
    arrays = read_arrays(VIT_TOKEN)
    arrays[POSITIONS] = arrays[POSITIONS][:, 1:]  # as in big_vision
    np.savez(tmp_path / "tok.npz", **arrays)
    weights = weights_of(small_model(weights=tmp_path / "tok.npz"))
    assert not weights[POSITIONS][:, 0].any()
    np.testing.assert_array_equal(weights[CLASS_TOKEN], arrays[CLASS_TOKEN])
