"""Tests of saving, loading and resampling the variants of position embeddings."""

import functools

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.position_embeddings import resample, resample_axis

from ..shared import TWO_LAYERS, assert_same_weights, randomize

pytestmark = pytest.mark.one_backend

NONE = {"position_embedding": "none"}
LEARNED_2D = {"position_embedding": "learned2d"}
RELATIVE = {"position_embedding": "relative"}
EVERY_LAYER = {"position_embedding_at": "every_layer"}
SHARED = {"position_embedding_at": "every_layer_shared"}
SINES = {"position_embedding": "sincos2d", "class_token_position": False}

# How weights change, by name, from a grid of 2x3 patches to one of 3x4.
CHANGES = {
    "pos_embedding": functools.partial(resample, old_grid=(2, 3), new_grid=(3, 4)),
    "y_embedding": functools.partial(resample_axis, new=3),
    "x_embedding": functools.partial(resample_axis, new=4),
}


def build(input_shape=(8, 12, 3), seed=0, **arguments):
    """Returns a model with random weights. The default image has 2x3 patches."""
    arguments = {**TWO_LAYERS, "patch_size": 4, "input_shape": input_shape, **arguments}
    return randomize(keras_vit.VisionTransformer(**arguments), seed=seed)


@pytest.mark.parametrize(
    "variant",
    [NONE, LEARNED_2D, RELATIVE, EVERY_LAYER, {**LEARNED_2D, **SHARED}, SINES],
    ids=str,
)
def test_position_variants_are_restored(variant, tmp_path):
    model = build(**variant)
    checkpoints.save(model, tmp_path / "model.npz")
    restored = keras_vit.from_pretrained(tmp_path / "model.npz")
    assert restored.arguments.items() >= variant.items()
    assert_same_weights(restored, model)


@pytest.mark.parametrize(
    "variant_of_file, variant_of_model, expected",
    [
        (SHARED, {}, "position_embedding_at=every_layer_shared"),
        ({**SINES, **NONE}, SINES, "embedding=none"),
    ],
    ids=["shared", "none"],
)
def test_rejects_other_positions_with_equal_arrays(
    variant_of_file, variant_of_model, expected, tmp_path
):
    checkpoints.save(build(**variant_of_file), tmp_path / "model.npz")
    with pytest.raises(ValueError, match=f"so the model must be built with .*{expected}"):
        checkpoints.load(build(**variant_of_model), tmp_path / "model.npz", head="new")


@pytest.mark.parametrize("library", ["huggingface", "timm"])
@pytest.mark.parametrize(
    "variant, expected",
    [({"rotary": {}}, "rotary=None"), (SHARED, "position_embedding_at=stem")],
    ids=["rotary", "shared"],
)
def test_rejects_positions_that_the_config_does_not_mention(variant, expected, library, tmp_path):
    dinov2 = {"layer_scale": 1e-5, "exact_gelu": True, "include_top": False}
    square = {"input_shape": (8, 8, 3), **dinov2}
    checkpoints.save(build(**square), tmp_path, format=library)
    model = build(**square, **variant)
    with pytest.raises(ValueError, match=f"so the model must be built with {expected}"):
        checkpoints.load(model, tmp_path)
    changed = keras_vit.from_pretrained(tmp_path, **variant)  # the caller asks for another model
    assert all(changed.arguments[name] == model.arguments[name] for name in variant)


@pytest.mark.parametrize("variant", [LEARNED_2D, EVERY_LAYER, {**LEARNED_2D, **SHARED}], ids=str)
def test_position_variants_are_resampled(variant, tmp_path):
    model = build(**variant)
    checkpoints.save(model, tmp_path / "model.npz")
    larger = build(input_shape=(12, 16, 3), seed=1, **variant)  # 3x4 patches
    checkpoints.load(larger, tmp_path / "model.npz")
    for new, old in zip(larger.weights, model.weights, strict=True):
        change = CHANGES.get(new.path.rpartition("/")[2], np.asarray)
        np.testing.assert_allclose(new, change(np.asarray(old)), err_msg=new.path)


def test_relative_positions_require_the_same_grid(tmp_path):
    checkpoints.save(build(**RELATIVE), tmp_path / "model.npz")
    with pytest.raises(ValueError, match="relative_embedding' in the checkpoint must be "):
        checkpoints.load(build(input_shape=(12, 16, 3), **RELATIVE), tmp_path / "model.npz")
