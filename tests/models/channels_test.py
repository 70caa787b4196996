"""Tests of models with 1, 4 or 12 input channels."""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import TWO_LAYERS, random_images, randomize_head, to_numpy


def vit(**arguments):
    return keras_vit.VisionTransformer(**{**TWO_LAYERS, **arguments})


def hybrid(**arguments):
    return vit(patch_size=1, resnet_blocks=(1,), **arguments)


def bit(**arguments):
    return keras_vit.BiTResNet(depth=8, width=32, **arguments)


@pytest.mark.parametrize(
    ("build", "channels"),
    [
        (vit, 4),
        pytest.param(hybrid, 1, marks=pytest.mark.one_backend),
        pytest.param(bit, 12, marks=pytest.mark.one_backend),
    ],
)
def test_model_trains_with_other_channel_counts(build, channels):
    model = build(input_shape=(32, 48, channels), classes=3)
    assert model.input_shape == (None, 32, 48, channels)
    images = random_images((2, 32, 48, channels))
    # A zero head would pass no gradient to the layers below.
    randomize_head(model)
    model.compile(
        keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    kernels = [weight for weight in model.trainable_weights if weight.path.endswith("kernel")]
    # A convolution has an axis of channels, and patches contain 8 x 8 pixels.
    assert kernels[0].shape[-2] == (64 * channels if build is vit else channels)
    before = to_numpy(kernels[0])
    history = model.fit(images, np.array([0, 2]), batch_size=2, verbose=0, shuffle=False).history
    assert np.isfinite(history["loss"]).all()
    assert np.abs(to_numpy(kernels[0]) - before).max() > 0
