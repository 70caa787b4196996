"""Tests of `at_patch_size`, which runs a model at a different patch size."""

import gc
import weakref
from functools import partial

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import VisionTransformer, at_patch_size, checkpoints

from ..shared import SIZES, random_images, randomize_head, to_numpy

MODEL = {**SIZES, "input_shape": (8, 16, 3), "classes": 3}
IMAGES = random_images((2, 8, 16, 3))


def _model(**changes):
    return randomize_head(VisionTransformer(**{**MODEL, **changes}))


def _logits(model):
    return to_numpy(model(IMAGES))


@pytest.mark.parametrize(
    "changes",
    [
        {"position_embedding_at": "every_layer", "num_layers": 2},
        {"classifier": "gap", "position_resampling": "bicubic_antialias"},
        {"classifier": "map", "position_embedding": "none"},
    ],
)
def test_at_patch_size_matches_loading_at_that_size(changes, tmp_path):
    model = _model(**changes)
    checkpoints.save(model, tmp_path / "model.npz")
    for size in (2, 8):
        loaded = keras_vit.from_pretrained(tmp_path / "model.npz", patch_size=size)
        with at_patch_size(model, size):
            ours = _logits(model)
        np.testing.assert_allclose(ours, _logits(loaded), atol=1e-5)
        assert np.abs(ours - _logits(model)).max() > 1e-3


def test_at_patch_size_works_in_bfloat16():
    whole = _model()
    half = _model(dtype="mixed_bfloat16")
    half.set_weights(whole.get_weights())
    with at_patch_size(whole, 2), at_patch_size(half, 2):
        np.testing.assert_allclose(_logits(half), _logits(whole), atol=0.05)


def test_at_patch_size_leaves_other_models_unchanged():
    model = _model()
    other = _model()
    expected = _logits(model)
    expected_of_other = _logits(other)
    with at_patch_size(model, 2):
        np.testing.assert_array_equal(_logits(other), expected_of_other)
    np.testing.assert_array_equal(_logits(model), expected)


def test_the_innermost_patch_size_applies():
    model = _model()
    other = _model()
    expected = _logits(model)
    with at_patch_size(model, 2), at_patch_size(model, 4), at_patch_size(other, 2):
        np.testing.assert_array_equal(_logits(model), expected)


def test_compiled_functions_follow_the_patch_size():
    model = _model()
    expected = _logits(model)
    for size in (2, 8):
        with at_patch_size(model, size):
            np.testing.assert_allclose(model.predict(IMAGES, verbose=0), _logits(model), atol=1e-5)
        np.testing.assert_allclose(model.predict(IMAGES, verbose=0), expected, atol=1e-5)


@pytest.mark.one_backend
def test_maps_of_another_patch_size_are_refused():
    model = _model()
    maps = keras_vit.FeatureModel(model, tokens="patch", grid=True)
    calls = [
        lambda: maps(IMAGES),
        lambda: keras_vit.features(model, IMAGES, tokens="patch", grid=True),
        lambda: keras_vit.inspection.attention_maps(model, IMAGES, method="mean"),
    ]
    for call in calls:
        with at_patch_size(model, 4):
            call()
        with pytest.raises(ValueError, match="outside of `at_patch_size`"), at_patch_size(model, 2):
            call()


@pytest.mark.one_backend
def test_images_are_not_kept():
    model = _model()
    images = keras.ops.convert_to_tensor(IMAGES)
    reference = weakref.ref(images)
    with at_patch_size(model, 2):
        model(images)
        del images
        gc.collect()
        assert reference() is None


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("model", "size", "message"),
    [
        (partial(_model, resnet_blocks=(), patch_size=1), 2, "without a stem"),
        (partial(_model, rotary={}), 2, "rotary"),
        (partial(_model, position_embedding="relative"), 2, "relative"),
        (partial(keras_vit.BiTResNet, depth=8, width=32), 2, "plain VisionTransformer"),
        (_model, 3, "number of patches.*patch_size=3"),
        (_model, 2.5, "integer of 1 or more"),
    ],
)
def test_rejects_other_models_and_sizes(model, size, message):
    with pytest.raises(ValueError, match=message), at_patch_size(model(), size):
        pass
