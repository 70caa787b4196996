"""Positions go to any grid, from any grid, with and without a class token's row."""

import numpy as np
import pytest
import scipy.ndimage

from keras_vit import checkpoints
from keras_vit.checkpoints import positions
from keras_vit.checkpoints.names import CLASS_TOKEN, POSITIONS


@pytest.fixture
def random_positions():
    return np.random.RandomState(1).standard_normal((1, 197, 4)).astype("float32")


def test_squares_are_resampled_to_the_originals_numbers(golden_files):
    with np.load(golden_files / "posemb_resize.npz") as file:
        cases = [name for name in file.files if name.startswith("in_")]
        assert len(cases) == 10
        for name in cases:
            old, new = (int(side) for side in name.split("_")[1:3])
            result = positions.resample(file[name], (old, old), (new, new))
            np.testing.assert_allclose(result, file[name.replace("in_", "out_")], atol=1e-6)


def test_the_resampled_positions_of_the_reference_are_met(random_positions):
    result = positions.resample(random_positions, (14, 14), (24, 24))
    np.testing.assert_allclose(result[0, 25], [-0.050135, -0.292526, 1.048531, -0.499447], atol=1e-6)
    np.testing.assert_allclose(result[0, 576], [1.217941, -1.940681, -0.806178, 0.049062], atol=1e-6)
    assert result.sum(dtype=np.float64) == pytest.approx(73.57263, abs=1e-4)


@pytest.mark.parametrize("old, new", [(28, 48), (24, 42), (16, 30), (32, 16), (14, 24), (7, 12), (3, 1), (1, 5)])
def test_the_scipy_border_is_scipys_and_otherwise_the_border_is_kept(old, new):
    grid = np.random.RandomState(0).standard_normal((old, old, 3)).astype("float32")
    expected = scipy.ndimage.zoom(grid, (new / old, new / old, 1), order=1).reshape(1, -1, 3)
    flat = grid.reshape(1, -1, 3)
    np.testing.assert_allclose(positions.resample(flat, (old, old), (new, new), scipy_border=True), expected, atol=1e-5)
    kept = positions.resample(flat, (old, old), (new, new)).reshape(new, new, 3)
    corners = [0, -1] if new > 1 else [0]
    for i in corners:
        for j in corners:
            np.testing.assert_allclose(kept[i, j], grid[i, j], atol=1e-5)


def test_scipys_border_really_is_zero_for_28_to_48():
    ones = np.ones((1, 28 * 28, 2), "float32")
    zeroed = positions.resample(ones, (28, 28), (48, 48), scipy_border=True).reshape(48, 48, 2)
    assert not zeroed[-1].any() and not zeroed[:, -1].any() and (zeroed[:-1, :-1] > 0.99).all()
    np.testing.assert_allclose(positions.resample(ones, (28, 28), (48, 48)), 1.0, atol=1e-6)


def test_one_axis_does_not_see_the_other():
    rows, columns = np.mgrid[:3, :5].astype("float32")
    grid = np.stack([rows, columns], axis=-1).reshape(1, 15, 2)
    result = positions.resample(grid, (3, 5), (5, 9)).reshape(5, 9, 2)
    np.testing.assert_allclose(result[..., 0], np.repeat(np.linspace(0, 2, 5)[:, None], 9, axis=1), atol=1e-6)
    np.testing.assert_allclose(result[..., 1], np.repeat(np.linspace(0, 4, 9)[None], 5, axis=0), atol=1e-6)


@pytest.mark.parametrize(
    "rows, token, target, known, expected",
    [
        (197, True, (24, 24), None, ((14, 14), True)),
        (196, False, (24, 24), None, ((14, 14), False)),
        (196, True, (24, 24), None, ((14, 14), False)),  # a class token without a position
        (25, True, (4, 6), None, ((4, 6), True)),
        (24, False, (4, 6), None, ((4, 6), False)),
        (24, True, (4, 6), None, ((4, 6), False)),
        (17, True, (2, 8), None, ((4, 4), True)),  # a square, unless somebody knows better
        (17, True, (2, 8), (2, 8), ((2, 8), True)),
        (16, False, (4, 4), (2, 8), ((2, 8), False)),
        (24, False, (5, 5), None, None),
        (17, True, (4, 4), (3, 5), None),
    ],
)
def test_the_grid_of_a_file_is_found(rows, token, target, known, expected):
    assert positions.source_grid(rows, token, target, known) == expected


def test_a_load_resamples_to_a_grid_that_is_not_square(golden_files, small, values, arrays):
    model = small(input_shape=(48, 80, 3))
    report = checkpoints.load(model, golden_files / "vit_token.ckpt.npz")
    original = arrays(golden_files / "vit_token.ckpt.npz")[POSITIONS]
    np.testing.assert_array_equal(values(model)[POSITIONS], positions.resample(original, (4, 4), (6, 10)))
    assert report.resampled == [(POSITIONS, (1, 61, 64), ((4, 4), (6, 10)))]


def test_the_border_can_be_scipys_in_a_load(small, values, tmp_path):
    source = small(input_shape=(28, 28, 3), patch_size=1, classifier="gap", classes=2)
    source.get_layer("head").kernel.assign(np.ones((64, 2)))
    checkpoints.save(source, tmp_path / "28.npz")
    model = small(input_shape=(48, 48, 3), patch_size=1, classifier="gap", classes=2)
    checkpoints.load(model, tmp_path / "28.npz", scipy_border=True)
    assert not values(model)[POSITIONS].reshape(48, 48, 64)[-1].any()
    checkpoints.load(model, tmp_path / "28.npz")
    assert values(model)[POSITIONS].reshape(48, 48, 64)[-1].any()


def test_a_file_of_ours_carries_a_grid_that_is_not_square(small, values, tmp_path):
    wide = small(input_shape=(16, 64, 3))  # 2x8, as many tokens as 4x4
    wide.get_layer("head").kernel.assign(np.ones((64, 10)))
    checkpoints.save(wide, tmp_path / "wide.npz")
    same = small(input_shape=(16, 64, 3), weights=tmp_path / "wide.npz")
    np.testing.assert_array_equal(values(same)[POSITIONS], values(wide)[POSITIONS])
    square = small()
    report = checkpoints.load(square, tmp_path / "wide.npz")
    assert report.resampled == [(POSITIONS, (1, 17, 64), ((2, 8), (4, 4)))]
    assert not report.left_over
    expected = positions.resample(values(wide)[POSITIONS], (2, 8), (4, 4))
    np.testing.assert_array_equal(values(square)[POSITIONS], expected)


def test_the_grid_can_be_said_where_the_file_does_not(golden_files, small, values, arrays):
    model = small()
    report = checkpoints.load(model, golden_files / "vit_token.ckpt.npz", source_grid=(2, 8))
    assert report.resampled[0][2] == ((2, 8), (4, 4))
    with pytest.raises(ValueError, match=r"`source_grid` must be \(rows, columns\)"):
        checkpoints.load(model, golden_files / "vit_token.ckpt.npz", source_grid=(4, 0))
    with pytest.raises(ValueError, match=r"those of a \(3, 5\) grid"):
        checkpoints.load(model, golden_files / "vit_token.ckpt.npz", source_grid=(3, 5))


def test_a_class_tokens_position_goes_into_the_token_where_the_model_has_no_row(golden_files, small, values, arrays):
    source = golden_files / "vit_token.ckpt.npz"
    with_row = small(weights=source)
    without = small(weights=source, class_token_position=False)
    file = arrays(source)
    np.testing.assert_array_equal(values(without)[CLASS_TOKEN], file[CLASS_TOKEN] + file[POSITIONS][:, :1])
    with np.load(golden_files / "vit_token.io.npz") as io:
        np.testing.assert_allclose(
            with_row.predict(io["inputs"], verbose=0), without.predict(io["inputs"], verbose=0), atol=1e-5
        )


def test_a_class_token_without_a_position_gets_a_row_of_zeros(golden_files, small, values, tmp_path, arrays):
    file = arrays(golden_files / "vit_token.ckpt.npz")
    file[POSITIONS] = file[POSITIONS][:, 1:]  # as big_vision has it
    np.savez(tmp_path / "tok.npz", **file)
    model = small(weights=tmp_path / "tok.npz")
    assert not values(model)[POSITIONS][:, 0].any()
    np.testing.assert_array_equal(values(model)[CLASS_TOKEN], file[CLASS_TOKEN])
