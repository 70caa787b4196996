"""Tests of resampling position embeddings between grids, with and without a row for the class
token."""

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.names import POSITIONS
from keras_vit.checkpoints.position_embeddings import RULES, resample, resample_axis, source_grid

from ..shared import assert_close, random_images, randomize, read_arrays
from .helpers import VIT_TOKEN, assert_matches_logits, small_model, weights_of

pytestmark = pytest.mark.one_backend  # positions are resampled in numpy

GRIDS = [(4, 6), (6, 4), (7, 12), (14, 24), (14, 7)]


@pytest.mark.parametrize(
    "rows, token, target, given, expected",
    [
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


# For 28 and 48, SciPy moves the last coordinate past the end.
@pytest.mark.parametrize("old, new", [(3, 5), (3, 2), (6, 1), (28, 48)])
def test_lines_stay_lines_between_the_same_ends(old, new):
    start = np.array([0.0, 3.0])
    end = np.array([2.0, -1.0])
    resampled = resample_axis(np.linspace(start, end, old)[None], new)
    np.testing.assert_allclose(resampled, np.linspace(start, end, new)[None], atol=1e-6)


def test_single_position_is_repeated():
    np.testing.assert_array_equal(resample_axis(np.ones((1, 1, 2)), 3), np.ones((1, 3, 2)))


def test_resampling_to_the_same_grid_is_identity():
    positions = random_images((1, 13, 4))
    # This rule changes the values of a grid of the same size.
    result = resample(positions, (3, 4), (3, 4), "bicubic_offset")
    np.testing.assert_array_equal(result, positions)


def test_saved_file_stores_a_rectangular_grid(tmp_path):
    # The model has 2x8 patches, as many as a grid of 4x4.
    wide = randomize(small_model(input_shape=(16, 64, 3)))
    checkpoints.save(wide, tmp_path / "wide.npz")
    square = small_model()
    report = checkpoints.load(square, tmp_path / "wide.npz")
    assert report.resampled == [(POSITIONS, (1, 17, 64), ((2, 8), (4, 4)))]
    expected = resample(weights_of(wide)[POSITIONS], (2, 8), (4, 4))
    np.testing.assert_array_equal(weights_of(square)[POSITIONS], expected)


def test_source_grid_can_be_specified():
    model = small_model()
    report = checkpoints.load(model, VIT_TOKEN, source_grid=(2, 8))
    assert report.resampled[0][2] == ((2, 8), (4, 4))
    with pytest.raises(ValueError, match="Set `source_grid="):
        checkpoints.load(model, VIT_TOKEN, source_grid=(3, 5))
    for grid in (4, (4, 4, 4), (0, 4)):
        with pytest.raises(ValueError, match="`source_grid` must be"):
            keras_vit.from_pretrained(VIT_TOKEN, source_grid=grid)


def test_class_token_position_is_added_to_the_token():
    model = small_model(weights=VIT_TOKEN, class_token_position=False)
    assert_matches_logits(model, "vit_token")


def test_class_token_without_position_gets_zero_row(tmp_path):
    arrays = read_arrays(VIT_TOKEN)
    arrays[POSITIONS] = arrays[POSITIONS][:, 1:]  # as in big_vision
    np.savez(tmp_path / "tok.npz", **arrays)
    weights = weights_of(small_model(weights=tmp_path / "tok.npz"))
    assert not weights[POSITIONS][:, 0].any()


def test_positions_are_added_to_both_class_tokens(tmp_path):
    model = randomize(small_model(distilled=True))
    checkpoints.save(model, tmp_path / "model.npz")
    other = small_model(distilled=True, class_token_position=False, weights=tmp_path / "model.npz")
    images = random_images((2, 32, 32, 3), seed=1)
    assert_close(other(images), model(images), tolerance=1e-4)
