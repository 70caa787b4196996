"""Tests of resampling position embeddings between grids, with and without a row for the class
token."""

import numpy as np
import pytest
import scipy.ndimage

from keras_vit import checkpoints
from keras_vit.checkpoints.names import CLASS_TOKEN, POSITIONS
from keras_vit.checkpoints.position_embeddings import RULES, resample, source_grid

from ..shared import read_arrays
from .helpers import VIT_TOKEN, assert_matches_logits, small_model, weights_of

pytestmark = pytest.mark.one_backend  # positions are resampled in numpy


def test_resampling_matches_reference_values():
    positions = np.random.RandomState(1).standard_normal((1, 197, 4)).astype("float32")
    (result,) = resample(positions, (14, 14), (24, 24))
    expected = [-0.050135, -0.292526, 1.048531, -0.499447]
    np.testing.assert_allclose(result[25], expected, atol=1e-6)
    expected = [1.217941, -1.940681, -0.806178, 0.049062]
    np.testing.assert_allclose(result[576], expected, atol=1e-6)
    assert result.sum(dtype=np.float64) == pytest.approx(73.57263, abs=1e-4)


@pytest.mark.parametrize(
    "old, new", [(28, 48), (24, 42), (16, 30), (32, 16), (14, 24), (7, 12), (3, 1), (1, 5)]
)
def test_resampling_matches_scipy(old, new):
    grid = np.random.RandomState(0).standard_normal((old, old, 3)).astype("float32")
    expected = scipy.ndimage.zoom(grid, (new / old, new / old, 1), order=1)
    result = resample(grid.reshape(1, -1, 3), (old, old), (new, new)).reshape(new, new, 3)
    # Rounding can put SciPy's last coordinate outside the grid, where SciPy returns zeros.
    end = new if expected[-1].any() else new - 1
    np.testing.assert_allclose(result[:end, :end], expected[:end, :end], atol=1e-5)


@pytest.mark.parametrize("old, new", [(28, 48), (24, 42), (32, 16), (7, 12), (1, 5)])
def test_resampling_keeps_the_corners(old, new):
    grid = np.random.RandomState(0).standard_normal((old, old, 3)).astype("float32")
    result = resample(grid.reshape(1, -1, 3), (old, old), (new, new)).reshape(new, new, 3)
    corners = np.ix_([0, -1], [0, -1])
    np.testing.assert_allclose(result[corners], grid[corners], atol=1e-5)


def test_rows_and_columns_are_resampled_independently():
    rows, columns = np.mgrid[:3, :5].astype("float32")
    grid = np.stack([rows, columns], axis=-1).reshape(1, 15, 2)
    result = resample(grid, (3, 5), (5, 9)).reshape(5, 9, 2)
    new_rows, new_columns = np.mgrid[0:2:5j, 0:4:9j]  # with 5 and 9 steps
    np.testing.assert_allclose(result[..., 0], new_rows, atol=1e-6)
    np.testing.assert_allclose(result[..., 1], new_columns, atol=1e-6)


@pytest.mark.parametrize(
    "rows, token, target, given, expected",
    [
        (197, True, (24, 24), None, ((14, 14), True)),
        (196, False, (24, 24), None, ((14, 14), False)),
        (196, True, (24, 24), None, ((14, 14), False)),  # a class token without a position
        (25, True, (4, 6), None, ((4, 6), True)),
        (24, False, (4, 6), None, ((4, 6), False)),
        (24, True, (4, 6), None, ((4, 6), False)),
        (17, True, (2, 8), None, ((4, 4), True)),  # a square wins over the target
        (17, True, (2, 8), (2, 8), ((2, 8), True)),
        (16, False, (4, 4), (2, 8), ((2, 8), False)),
        (24, False, (5, 5), None, None),
        (17, True, (4, 4), (3, 5), None),
    ],
)
def test_source_grid_is_inferred(rows, token, target, given, expected):
    assert source_grid(rows, token, target, given) == expected


GRIDS = [(4, 6), (6, 4), (7, 12), (14, 24), (14, 7)]


@pytest.mark.parametrize("class_token", [0, 1])
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_square_grid_resampling_matches_the_reference(old, new, class_token, golden):
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


def test_all_golden_grids_are_tested(golden):
    keys = {key for key in golden("posemb_resize") if key.startswith("in_")}
    assert keys == {f"in_{old}_{new}_tok{token}" for old, new in GRIDS for token in (0, 1)}


def linear_ramps(rows, columns):
    """Returns a grid of values that grow with the rows, with the columns, and with both."""
    y, x = np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 1, columns), indexing="ij")
    return np.stack([y, x, 2 * y - 3 * x + 1], axis=-1).reshape(1, rows * columns, 3)


@pytest.mark.parametrize("old, new", [((3, 5), (7, 2)), ((2, 8), (4, 4))])
def test_resampling_preserves_linear_ramps(old, new):
    result = resample(linear_ramps(*old), old, new)
    np.testing.assert_allclose(result, linear_ramps(*new), atol=1e-6)


@pytest.mark.parametrize(
    "old, new, axis",
    [
        ((6, 6), (6, 1), 0),
        ((1, 4), (3, 4), 1),
    ],
)
def test_single_row_or_column_preserves_the_other_axis(old, new, axis):
    result = resample(linear_ramps(*old), old, new)
    np.testing.assert_allclose(result[..., axis], linear_ramps(*new)[..., axis], atol=1e-6)


def test_resampling_adds_no_zero_border():
    ones = np.ones((1, 28 * 28, 2), "float32")
    np.testing.assert_allclose(resample(ones, (28, 28), (48, 48)), 1, atol=1e-6)


def test_resampling_to_the_same_grid_is_identity():
    positions = np.random.default_rng(0).normal(size=(1, 13, 4)).astype("float32")
    np.testing.assert_array_equal(resample(positions, (3, 4), (3, 4)), positions)


def test_load_resamples_to_a_rectangular_grid():
    model = small_model(input_shape=(48, 80, 3))
    report = checkpoints.load(model, VIT_TOKEN)
    expected = resample(read_arrays(VIT_TOKEN)[POSITIONS], (4, 4), (6, 10))
    np.testing.assert_array_equal(weights_of(model)[POSITIONS], expected)
    assert report.resampled == [(POSITIONS, (1, 61, 64), ((4, 4), (6, 10)))]


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
    with pytest.raises(ValueError, match=r"`source_grid` must be \(rows, columns\)"):
        checkpoints.load(model, VIT_TOKEN, source_grid=(4, 0))
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
