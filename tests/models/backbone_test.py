"""Tests of `backbone`, which returns feature maps of several strides."""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import TWO_LAYERS, random_images

MODEL = {**TWO_LAYERS, "num_layers": 4, "hidden_size": 16, "mlp_dim": 24}


@pytest.mark.one_backend
def test_maps_have_the_requested_strides():
    vit = keras_vit.VisionTransformer(**MODEL, input_shape=(32, 48, 3))
    backbone = keras_vit.backbone(vit, layers=[1, 2, 3, 4], strides=[2, 4, 8, 16])
    images = random_images((2, 32, 48, 3))
    maps = backbone(images)
    assert [tuple(x.shape) for x in maps] == [
        (2, 16, 24, 16),
        (2, 8, 12, 16),
        (2, 4, 6, 16),
        (2, 2, 3, 16),
    ]
    # At the patch stride, the map contains the tokens. At twice this stride, each value is the
    # maximum of four tokens.
    third, fourth = keras_vit.features(vit, images, [3, 4], "patch", grid=True)
    np.testing.assert_allclose(maps[2], third, atol=1e-5)
    np.testing.assert_allclose(maps[3], fourth.reshape(2, 2, 2, 3, 2, 16).max((2, 4)), atol=1e-5)


@pytest.mark.one_backend
def test_loaded_backbone_has_the_same_maps_and_dtype_policy(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    vit = keras_vit.VisionTransformer(**MODEL, input_shape=(16, 16, 3))
    backbone = keras_vit.backbone(vit, layers=[2, 3, 4], strides=[4, 8, 16])
    keras.config.set_dtype_policy("float32")
    backbone.save(tmp_path / "backbone.keras")
    loaded = keras.models.load_model(tmp_path / "backbone.keras")
    images = random_images((2, 16, 16, 3))
    for ours, theirs in zip(loaded(images), backbone(images), strict=True):
        assert keras.backend.standardize_dtype(ours.dtype) == "bfloat16"
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("layers", "strides", "message"),
    [
        ([1], [12], "by a power of two"),
        ([1, 2], [8], "lists of the same length"),
        (1, 8, "lists of the same length"),
        ([1], [0], "by a power of two"),
        ([1], [1024], "must not exceed"),
    ],
)
def test_rejects_bad_strides(layers, strides, message):
    vit = keras_vit.VisionTransformer(**MODEL, input_shape=(32, 32, 3))
    with pytest.raises(ValueError, match=message):
        keras_vit.backbone(vit, layers=layers, strides=strides)
