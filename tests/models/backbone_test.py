"""Tests of `backbone`, which returns feature maps of several strides."""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import TWO_LAYERS, random_images

MODEL = {**TWO_LAYERS, "num_layers": 4, "hidden_size": 16, "mlp_dim": 24}


@pytest.mark.one_backend
def test_backbone_has_requested_strides_and_saves(tmp_path):
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
    # At the patch stride, the map contains the tokens. At twice this stride, each value is a
    # maximum over four tokens.
    third, fourth = keras_vit.features(vit, images, [3, 4], "patch", grid=True)
    np.testing.assert_allclose(maps[2], third, atol=1e-5)
    np.testing.assert_allclose(maps[3], fourth.reshape(2, 2, 2, 3, 2, 16).max((2, 4)), atol=1e-5)
    backbone.save(tmp_path / "backbone.keras")
    loaded = keras.models.load_model(tmp_path / "backbone.keras")
    for ours, theirs in zip(loaded(images), maps):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def _images_of_discs(count):
    """Returns noisy images of bright discs, and the masks of the discs."""
    random = np.random.default_rng(0)
    centers = random.uniform(8, 24, (count, 2, 1, 1))
    y, x = np.mgrid[:32, :32]
    distances = np.hypot(y - centers[:, 0], x - centers[:, 1])
    masks = (distances < 7)[..., None].astype("float32")
    noise = 0.1 * random.standard_normal((count, 32, 32, 3))
    return (1.2 * masks - 0.6 + noise).astype("float32"), masks


@pytest.mark.full
@pytest.mark.one_backend
def test_segmentation_head_learns_shapes():
    # The model is the segmentation example in docs/features.md.
    vit = keras_vit.VisionTransformer(**{**MODEL, "num_layers": 2}, input_shape=(32, 32, 3))
    inputs = keras.Input((32, 32, 3))
    maps = keras_vit.backbone(vit, layers=[1, 2], strides=[4, 8])(inputs)
    maps = [keras.layers.Resizing(32, 32)(x) for x in maps]
    masks = keras.layers.Conv2D(1, 1, activation="sigmoid")(keras.layers.Concatenate()(maps))
    model = keras.Model(inputs, masks)
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", jit_compile=False)
    images, discs = _images_of_discs(48)
    model.fit(images[:32], discs[:32], batch_size=8, epochs=8, verbose=0)
    is_right = (np.array(model(images[32:])) > 0.5) == discs[32:]
    # Discs cover 15 % of an image, so a model that finds none is right for 85 % of the pixels.
    assert is_right.mean() > 0.95


def test_rejects_bad_strides_and_layers():
    vit = keras_vit.VisionTransformer(**MODEL, input_shape=(32, 32, 3))
    with pytest.raises(ValueError, match="by a power of two.*Received: stride=12"):
        keras_vit.backbone(vit, layers=[1], strides=[12])
    for layers, strides in (([1, 2], [8]), (1, 8)):
        with pytest.raises(
            ValueError, match="`layers` and `strides` must be lists of the same length"
        ):
            keras_vit.backbone(vit, layers=layers, strides=strides)
    with pytest.raises(ValueError, match="`strides` must not exceed the image's side"):
        keras_vit.backbone(vit, layers=[1], strides=[1024])
    with pytest.raises(ValueError, match="Received: layer=6"):
        keras_vit.backbone(vit, layers=[3, 6], strides=[8, 16])
