"""Tests that models reproduce the outputs of the JAX reference (`vit_jax`) with the same
weights."""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import GOLDEN_SIZES
from .reference_weights import fill_with_reference_weights, reference_images

SMALL = {**GOLDEN_SIZES, "input_shape": (32, 32, 3)}
# Model arguments for each golden file.
CASES = {
    "vit_token": {},
    "vit_token_prelogits": {"representation_size": 48},
    "vit_gap": {"classifier": "gap", "input_shape": (32, 48, 3)},
    "vit_unpooled": {"classifier": "unpooled"},
    "vit_token_unpooled": {"classifier": "token_unpooled"},
    "vit_token_p4_h3": {
        "patch_size": 4,
        "hidden_size": 96,
        "num_layers": 3,
        "num_heads": 3,
        "mlp_dim": 384,
        "input_shape": (24, 24, 3),
    },
    "hybrid_2stage": {"resnet_blocks": (1, 2), "patch_size": 1, "input_shape": (64, 64, 3)},
    "hybrid_stem_only": {"resnet_blocks": (), "patch_size": 4, "input_shape": (64, 64, 3)},
}
cases = pytest.mark.parametrize("case", CASES)


def _run(model, images):
    """Compiles the model once. Without `predict`, JAX would compile each operation."""
    return model.predict(images, verbose=0)


def _tolerance(case):
    """ResNet stems amplify rounding errors."""
    return 2e-4 if case.startswith("hybrid") else 1e-5


@cases
def test_logits_match_reference(case, golden):
    model = keras_vit.VisionTransformer(
        **{**SMALL, **CASES[case]}, weights=golden.path(f"{case}.ckpt")
    )
    expected = golden(f"{case}.io")
    np.testing.assert_allclose(
        _run(model, expected["inputs"]), expected["logits"], atol=_tolerance(case)
    )


@pytest.mark.one_backend
@cases
def test_tokens_and_embedding_match_reference(case, golden, tmp_path):
    # The tokens do not depend on the head, so load the weights without `pre_logits` and `head`.
    arrays = {
        name: array
        for name, array in golden(f"{case}.ckpt").items()
        if not name.startswith(("pre_logits", "head"))
    }
    np.savez(tmp_path / "tokens.npz", **arrays)
    arguments = {
        **SMALL,
        **CASES[case],
        "classifier": "token_unpooled" if "cls" in arrays else "unpooled",
        "representation_size": 0,
        "include_top": False,
    }
    model = keras_vit.VisionTransformer(**arguments, weights=str(tmp_path / "tokens.npz"))
    expected = golden(f"{case}.io")
    np.testing.assert_allclose(
        _run(model, expected["inputs"]), expected["encoded"], atol=_tolerance(case)
    )
    embedding = keras.Model(model.input, model.get_layer("embedding").output)
    grid = expected["embedding"]
    tokens = grid.reshape(len(grid), -1, grid.shape[-1])
    np.testing.assert_allclose(_run(embedding, expected["inputs"]), tokens, atol=_tolerance(case))


# Reference outputs for the weights and images of `reference_weights.py`. Each entry has the model's
# arguments, the parameter count, the first six output values of each image, the sum of the outputs
# of each image, and the float32 tolerance.
TINY = {
    "patch_size": 16,
    "hidden_size": 32,
    "mlp_dim": 64,
    "num_heads": 4,
    "num_layers": 2,
    "classes": 10,
}
TINY_64 = {**TINY, "input_shape": (64, 64, 3)}
VECTORS = {
    "A": (
        TINY_64,
        42_666,
        [
            [-0.114785, 0.147360, -0.264884, 0.007096, 0.241381, 0.234327],
            [-0.093795, 0.152940, -0.275958, 0.017650, 0.207777, 0.212173],
        ],
        [1.03215, 0.99884],
        1e-5,
    ),
    "B": (
        {**TINY_64, "classifier": "gap"},
        42_602,
        [
            [-0.119707, -0.192619, -0.267027, -0.214029, 0.044663, -0.011517],
            [-0.191974, -0.124174, -0.222413, -0.229301, -0.063561, -0.163507],
        ],
        [-0.71165, -0.87952],
        1e-5,
    ),
    "C": (
        {**TINY_64, "representation_size": 24},
        43_378,
        [
            [-0.151085, -0.141440, -0.133961, -0.042740, 0.101788, 0.025895],
            [-0.147962, -0.137603, -0.128980, -0.035254, 0.095875, 0.028637],
        ],
        [-0.22830, -0.20799],
        1e-5,
    ),
    "D": (
        {**TINY_64, "classifier": "unpooled", "include_top": False},
        42_272,
        [
            [0.783532, -0.080673, 0.363710, -0.802925, 2.497506, 0.849708],
            [0.056969, -2.759042, -0.015579, -0.830908, 0.168802, -0.405401],
        ],
        [3.51953, 3.56104],
        1e-5,
    ),
    "D2": (
        {**TINY_64, "classifier": "token_unpooled", "include_top": False},
        42_336,
        [
            [2.233266, 0.057144, 1.378364, 0.694080, 0.768294, 0.158644],
            [2.264115, 0.023761, 1.346102, 0.736563, 0.704613, 0.149887],
        ],
        [3.13243, 2.99209],
        1e-5,
    ),
    "E": (
        {**TINY, "patch_size": 8, "resnet_blocks": (), "input_shape": (96, 96, 3)},
        158_474,
        [
            [-0.124508, 0.138822, -0.300761, 0.001070, 0.225799, 0.214314],
            [-0.092015, 0.142931, -0.304958, 0.005870, 0.215528, 0.203204],
        ],
        [0.81328, 0.84056],
        1e-5,
    ),
    "F": (
        {**TINY_64, "patch_size": 1, "resnet_blocks": (2, 1)},
        570_346,
        [
            [-0.062689, 0.149762, -0.274055, 0.025510, 0.222667, 0.238300],
            [-0.069398, 0.145668, -0.279455, 0.030740, 0.227820, 0.243304],
        ],
        [0.96278, 0.96663],
        1e-5,
    ),
    "F2": (
        {**TINY, "patch_size": 1, "resnet_blocks": (2, 1), "input_shape": (75, 75, 3)},
        571_498,
        [
            [-0.058116, 0.151804, -0.276262, 0.028751, 0.219983, 0.226030],
            [-0.062441, 0.149134, -0.276293, 0.034008, 0.223045, 0.234171],
        ],
        [0.95177, 0.96073],
        1e-5,
    ),
}
# The same values for one image. Each entry starts with the constructor.
LARGE_VECTORS = {
    "H": (
        keras_vit.ViT_B16,
        {},
        86_567_656,
        [[-0.652126, 1.516207, -1.367869, -1.350312, 0.417351, -0.321411]],
        [-75.75583],
        2e-5,
    ),
    "I": (
        keras_vit.ViT_B32,
        {"representation_size": 768},
        88_814_824,
        [[-1.478735, -0.714565, 0.203907, 0.247472, -0.323896, -0.027353]],
        [-2.62551],
        2e-5,
    ),
    "J": (
        keras_vit.R50_ViT_B16,
        {},
        98_659_112,
        [[1.001565, 1.391924, 0.071621, -0.593223, 0.818495, -0.735202]],
        [-30.43863],
        5e-4,
    ),
    "K": (
        keras_vit.R26_ViT_S32,
        {},
        36_431_912,
        [[-0.019662, -1.175801, -1.710785, -0.336277, -1.865810, -0.442900]],
        [-15.17279],
        5e-4,
    ),
    "L": (
        keras_vit.R_ViT_Ti16,
        {},
        6_337_704,
        [[-0.187434, 0.275619, -0.052567, -0.553259, 0.768502, 0.689666]],
        [-14.06567],
        5e-4,
    ),
}


def _assert_matches(model, count, first_values, sums, tolerance):
    """Compares the parameter count, the first six outputs of each image and their sums."""
    assert model.count_params() == count
    fill_with_reference_weights(model)
    outputs = _run(model, reference_images(model, len(sums))).astype("float64")
    outputs = outputs.reshape(len(sums), -1)
    np.testing.assert_allclose(outputs[:, :6], first_values, atol=tolerance)
    # The errors of independent values add up to the square root of their number. The sums in the
    # tables are rounded to five decimals.
    sum_tolerance = tolerance * outputs.shape[1] ** 0.5 + 1e-5
    np.testing.assert_allclose(outputs.sum(1), sums, atol=sum_tolerance)


@pytest.mark.parametrize(
    "vector",
    [
        "A",
        "D2",
        "F2",
        *(pytest.param(v, marks=pytest.mark.one_backend) for v in ("B", "C", "D", "E", "F")),
    ],
)
def test_small_models_match_reference_vectors(vector):
    arguments, *expected = VECTORS[vector]
    _assert_matches(keras_vit.VisionTransformer(**arguments), *expected)


@pytest.mark.parametrize(
    "vector",
    ["L", *(pytest.param(v, marks=(pytest.mark.one_backend, pytest.mark.full)) for v in "HIJK")],
)
def test_named_sizes_match_reference_vectors(vector):
    constructor, arguments, *expected = LARGE_VECTORS[vector]
    _assert_matches(constructor(**arguments), *expected)
