"""Tests of resampling position embeddings between grids, with and without a row for the class
token."""

import numpy as np
import pytest
import scipy.ndimage

from keras_vit import checkpoints
from keras_vit.checkpoints import position_embeddings
from keras_vit.checkpoints.names import CLASS_TOKEN, POSITIONS

pytestmark = pytest.mark.one_backend  # positions are resampled in numpy
GRIDS = [(4, 6), (6, 4), (7, 12), (14, 24), (14, 7)]


@pytest.fixture
def random_positions():
    return np.random.RandomState(1).standard_normal((1, 197, 4)).astype("float32")


def test_resampling_matches_reference_values(random_positions):
    result = position_embeddings.resample(random_positions, (14, 14), (24, 24))
    np.testing.assert_allclose(
        result[0, 25], [-0.050135, -0.292526, 1.048531, -0.499447], atol=1e-6
    )
    np.testing.assert_allclose(
        result[0, 576], [1.217941, -1.940681, -0.806178, 0.049062], atol=1e-6
    )
    assert result.sum(dtype=np.float64) == pytest.approx(73.57263, abs=1e-4)


@pytest.mark.parametrize(
    "old, new", [(28, 48), (24, 42), (16, 30), (32, 16), (14, 24), (7, 12), (3, 1), (1, 5)]
)
def test_resampling_matches_scipy(old, new):
    grid = np.random.RandomState(0).standard_normal((old, old, 3)).astype("float32")
    expected = scipy.ndimage.zoom(grid, (new / old, new / old, 1), order=1)
    result = position_embeddings.resample(grid.reshape(1, -1, 3), (old, old), (new, new)).reshape(
        new, new, 3
    )
    # Rounding can put SciPy's last coordinate outside the grid, where SciPy returns zeros.
    inside = slice(None, -1 if not expected[-1].any() else None)
    np.testing.assert_allclose(result[inside, inside], expected[inside, inside], atol=1e-5)
    corners = [0, -1] if new > 1 else [0]
    for i in corners:
        for j in corners:
            np.testing.assert_allclose(result[i, j], grid[i, j], atol=1e-5)


def test_rows_and_columns_are_resampled_independently():
    rows, columns = np.mgrid[:3, :5].astype("float32")
    grid = np.stack([rows, columns], axis=-1).reshape(1, 15, 2)
    result = position_embeddings.resample(grid, (3, 5), (5, 9)).reshape(5, 9, 2)
    np.testing.assert_allclose(
        result[..., 0], np.repeat(np.linspace(0, 2, 5)[:, None], 9, axis=1), atol=1e-6
    )
    np.testing.assert_allclose(
        result[..., 1], np.repeat(np.linspace(0, 4, 9)[None], 5, axis=0), atol=1e-6
    )


@pytest.mark.parametrize(
    "rows, token, target, known, expected",
    [
        (197, True, (24, 24), None, ((14, 14), True)),
        (196, False, (24, 24), None, ((14, 14), False)),
        (196, True, (24, 24), None, ((14, 14), False)),  # a class token without a position
        (25, True, (4, 6), None, ((4, 6), True)),
        (24, False, (4, 6), None, ((4, 6), False)),
        (24, True, (4, 6), None, ((4, 6), False)),
        # A square grid takes precedence over the target grid.
        (
            17,
            True,
            (2, 8),
            None,
            ((4, 4), True),
        ),
        (17, True, (2, 8), (2, 8), ((2, 8), True)),
        (16, False, (4, 4), (2, 8), ((2, 8), False)),
        (24, False, (5, 5), None, None),
        (17, True, (4, 4), (3, 5), None),
    ],
)
def test_source_grid_is_inferred(rows, token, target, known, expected):
    assert position_embeddings.source_grid(rows, token, target, known) == expected


@pytest.mark.parametrize("class_token", [0, 1])
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_square_grid_resampling_matches_the_reference(old, new, class_token, golden):
    arrays = golden("posemb_resize")
    key = f"{old}_{new}_tok{class_token}"
    result = position_embeddings.resample(arrays[f"in_{key}"], (old, old), (new, new))
    np.testing.assert_allclose(result, arrays[f"out_{key}"], atol=2e-7)
    assert result.dtype == np.float32


@pytest.mark.parametrize("grid", [(3, 4), (5, 9), (8, 7)])
@pytest.mark.parametrize("rule", [rule for rule in position_embeddings.RULES if rule != "zoom"])
def test_interpolation_rules_match_pytorch(rule, grid, golden):
    arrays = golden("families/resampling")
    result = position_embeddings.resample(arrays["positions"], (5, 7), grid, rule)
    np.testing.assert_allclose(
        result[0, 1:].reshape(*grid, -1), arrays[f"{rule}_{grid[0]}x{grid[1]}"], atol=5e-6
    )
    np.testing.assert_array_equal(result[:, 0], arrays["positions"][:, 0])


def test_all_golden_grids_are_tested(golden):
    keys = {key for key in golden("posemb_resize") if key.startswith("in_")}
    assert keys == {f"in_{old}_{new}_tok{token}" for old, new in GRIDS for token in (0, 1)}


def test_resampling_preserves_linear_ramps():
    def plane(rows, columns):
        y, x = np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 1, columns), indexing="ij")
        return np.stack([y, x, 2 * y - 3 * x + 1], axis=-1).reshape(1, rows * columns, 3)

    for old, new in [((3, 5), (7, 2)), ((2, 8), (4, 4)), ((6, 6), (6, 1)), ((1, 4), (3, 4))]:
        result = position_embeddings.resample(plane(*old), old, new)
        expected = plane(*new)
        if 1 in old or 1 in new:  # a single row or column has no slope, so skip that axis
            axis = 0 if 1 in (old[0], new[0]) else 1
            expected = expected[..., 1 - axis]
            result = result[..., 1 - axis]
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_resampling_adds_no_zero_border():
    ones = np.ones((1, 28 * 28, 2), "float32")
    np.testing.assert_allclose(position_embeddings.resample(ones, (28, 28), (48, 48)), 1, atol=1e-6)


def test_resampling_to_the_same_grid_is_identity():
    positions = np.random.default_rng(0).normal(size=(1, 13, 4)).astype("float32")
    np.testing.assert_array_equal(
        position_embeddings.resample(positions, (3, 4), (3, 4)), positions
    )


def test_load_resamples_to_a_rectangular_grid():
    model = small_model(input_shape=(48, 80, 3))
    report = checkpoints.load(model, GOLDEN / "vit_token.ckpt.npz")
    original = read_arrays(GOLDEN / "vit_token.ckpt.npz")[POSITIONS]
    np.testing.assert_array_equal(
        weights_of(model)[POSITIONS], position_embeddings.resample(original, (4, 4), (6, 10))
    )
    assert report.resampled == [(POSITIONS, (1, 61, 64), ((4, 4), (6, 10)))]


def test_saved_file_stores_a_rectangular_grid(tmp_path):
    wide = small_model(input_shape=(16, 64, 3))  # a 2x8 grid: 16 patches, like a 4x4 grid
    wide.get_layer("head").kernel.assign(np.ones((64, 10)))
    checkpoints.save(wide, tmp_path / "wide.npz")
    same = small_model(input_shape=(16, 64, 3), weights=tmp_path / "wide.npz")
    np.testing.assert_array_equal(weights_of(same)[POSITIONS], weights_of(wide)[POSITIONS])
    square = small_model()
    report = checkpoints.load(square, tmp_path / "wide.npz")
    assert report.resampled == [(POSITIONS, (1, 17, 64), ((2, 8), (4, 4)))]
    assert not report.unused
    expected = position_embeddings.resample(weights_of(wide)[POSITIONS], (2, 8), (4, 4))
    np.testing.assert_array_equal(weights_of(square)[POSITIONS], expected)


def test_source_grid_can_be_specified():
    model = small_model()
    report = checkpoints.load(model, GOLDEN / "vit_token.ckpt.npz", source_grid=(2, 8))
    assert report.resampled[0][2] == ((2, 8), (4, 4))
    with pytest.raises(ValueError, match=r"`source_grid` must be \(rows, columns\)"):
        checkpoints.load(model, GOLDEN / "vit_token.ckpt.npz", source_grid=(4, 0))
    with pytest.raises(ValueError, match="Set `source_grid="):
        checkpoints.load(model, GOLDEN / "vit_token.ckpt.npz", source_grid=(3, 5))


def test_class_token_position_is_added_to_the_token():
    source = GOLDEN / "vit_token.ckpt.npz"
    with_row = small_model(weights=source)
    without = small_model(weights=source, class_token_position=False)
    file = read_arrays(source)
    np.testing.assert_array_equal(
        weights_of(without)[CLASS_TOKEN], file[CLASS_TOKEN] + file[POSITIONS][:, :1]
    )
    with np.load(GOLDEN / "vit_token.io.npz") as io:
        np.testing.assert_allclose(
            with_row.predict(io["inputs"], verbose=0),
            without.predict(io["inputs"], verbose=0),
            atol=1e-5,
        )


def test_class_token_without_position_gets_zero_row(tmp_path):
    file = read_arrays(GOLDEN / "vit_token.ckpt.npz")
    file[POSITIONS] = file[POSITIONS][:, 1:]  # as in big_vision
    np.savez(tmp_path / "tok.npz", **file)
    model = small_model(weights=tmp_path / "tok.npz")
    assert not weights_of(model)[POSITIONS][:, 0].any()
    np.testing.assert_array_equal(weights_of(model)[CLASS_TOKEN], file[CLASS_TOKEN])
