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
# The other cases show nothing new on a second backend.
ON_BOTH_BACKENDS = ("vit_token", "vit_gap", "hybrid_2stage")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in ON_BOTH_BACKENDS else pytest.mark.one_backend)
        for case in CASES
    ],
)
def test_model_matches_reference(case, golden):
    model = keras_vit.VisionTransformer(
        **{**SMALL, **CASES[case]}, weights=golden.path(f"{case}.ckpt")
    )
    expected = golden(f"{case}.io")
    images = expected["inputs"]
    encoded = model.intermediates(images)["encoded"]
    embedding = keras.Model(model.input, model.get_layer("embedding").output)(images)
    # ResNet stems amplify rounding errors.
    tolerance = 2e-4 if case.startswith("hybrid") else 1e-5
    for actual, name in (
        (model.predict(images, verbose=0), "logits"),
        (encoded, "encoded"),
        (keras.ops.reshape(embedding, expected["embedding"].shape), "embedding"),
    ):
        np.testing.assert_allclose(actual, expected[name], atol=tolerance, err_msg=name)


# Reference outputs for the weights and images of `reference_weights.py`. Each entry has the
# constructor, its arguments, the first six output values of each image, the sum of the outputs of
# each image, and the float32 tolerance.
VECTORS = {
    # The side, 75 pixels, is not a multiple of the stride.
    "odd hybrid": (
        keras_vit.VisionTransformer,
        {
            "patch_size": 1,
            "hidden_size": 32,
            "mlp_dim": 64,
            "num_heads": 4,
            "num_layers": 2,
            "classes": 10,
            "resnet_blocks": (2, 1),
            "input_shape": (75, 75, 3),
        },
        [
            [-0.058116, 0.151804, -0.276262, 0.028751, 0.219983, 0.226030],
            [-0.062441, 0.149134, -0.276293, 0.034008, 0.223045, 0.234171],
        ],
        [0.95177, 0.96073],
        1e-5,
    ),
    "ViT-B/16": (
        keras_vit.ViT_B16,
        {},
        [[-0.652126, 1.516207, -1.367869, -1.350312, 0.417351, -0.321411]],
        [-75.75583],
        2e-5,
    ),
    "ViT-B/32": (
        keras_vit.ViT_B32,
        {"representation_size": 768},
        [[-1.478735, -0.714565, 0.203907, 0.247472, -0.323896, -0.027353]],
        [-2.62551],
        2e-5,
    ),
    "R50+ViT-B/16": (
        keras_vit.R50_ViT_B16,
        {},
        [[1.001565, 1.391924, 0.071621, -0.593223, 0.818495, -0.735202]],
        [-30.43863],
        5e-4,
    ),
    "R+ViT-Ti/16": (
        keras_vit.R_ViT_Ti16,
        {},
        [[-0.187434, 0.275619, -0.052567, -0.553259, 0.768502, 0.689666]],
        [-14.06567],
        5e-4,
    ),
}
in_full_tier = (pytest.mark.one_backend, pytest.mark.full)


@pytest.mark.parametrize(
    "case",
    [
        "odd hybrid",
        "R+ViT-Ti/16",
        pytest.param("ViT-B/16", marks=in_full_tier),
        pytest.param("ViT-B/32", marks=in_full_tier),
        pytest.param("R50+ViT-B/16", marks=in_full_tier),
    ],
)
def test_outputs_for_hashed_weights_match_reference(case):
    constructor, arguments, first_values, sums, tolerance = VECTORS[case]
    model = constructor(**arguments)
    fill_with_reference_weights(model)
    # Without `predict`, JAX would compile each operation.
    outputs = model.predict(reference_images(model, len(sums)), verbose=0).astype("float64")
    np.testing.assert_allclose(outputs[:, :6], first_values, atol=tolerance)
    # The errors of independent values add up to the square root of their number. The sums in the
    # table are rounded to five decimals.
    sum_tolerance = tolerance * outputs.shape[1] ** 0.5 + 1e-5
    np.testing.assert_allclose(outputs.sum(1), sums, atol=sum_tolerance)
