import numpy as np
import pytest

from keras_vit.checkpoints.positions import resample

GRIDS = [(4, 6), (6, 4), (7, 12), (14, 24), (14, 7)]


@pytest.mark.parametrize("class_token", [0, 1])
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_square_grids_are_resampled_as_the_original_does(old, new, class_token, golden):
    arrays = golden("posemb_resize")
    key = f"{old}_{new}_tok{class_token}"
    result = resample(arrays[f"in_{key}"], (old, old), (new, new))
    np.testing.assert_allclose(result, arrays[f"out_{key}"], atol=2e-7)
    assert result.dtype == np.float32


def test_every_golden_grid_is_tested(golden):
    keys = {key for key in golden("posemb_resize") if key.startswith("in_")}
    assert keys == {f"in_{old}_{new}_tok{token}" for old, new in GRIDS for token in (0, 1)}


def test_each_axis_is_resampled_on_its_own():
    # A plane stays the same plane between the same corners, whatever the grid.
    def plane(rows, columns):
        y, x = np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 1, columns), indexing="ij")
        return np.stack([y, x, 2 * y - 3 * x + 1], axis=-1).reshape(1, rows * columns, 3)

    for old, new in [((3, 5), (7, 2)), ((2, 8), (4, 4)), ((6, 6), (6, 1)), ((1, 4), (3, 4))]:
        result = resample(plane(*old), old, new)
        expected = plane(*new)
        if 1 in old or 1 in new:  # one row has no slope: it is the first
            axis = 0 if 1 in (old[0], new[0]) else 1
            expected = expected[..., 1 - axis]
            result = result[..., 1 - axis]
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_the_border_keeps_its_value_where_scipy_rounds_past_it():
    ones = np.ones((1, 28 * 28, 2), "float32")
    np.testing.assert_allclose(resample(ones, (28, 28), (48, 48)), 1, atol=1e-6)


def test_the_same_grid_changes_nothing():
    positions = np.random.default_rng(0).normal(size=(1, 13, 4)).astype("float32")
    np.testing.assert_array_equal(resample(positions, (3, 4), (3, 4)), positions)
