"""Tests of models with 1, 4 or 12 input channels."""

import numpy as np
import pytest

import keras_vit

from ..shared import TWO_LAYERS, images_for, randomize_head, to_numpy


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
def test_logits_depend_on_every_channel(build, channels):
    model = randomize_head(build(input_shape=(32, 48, channels), classes=3))
    images = images_for(model, 1)
    logits = to_numpy(model(images))
    for channel in range(channels):
        changed = images.copy()
        changed[..., channel] = 0
        assert np.abs(model(changed) - logits).max() > 1e-4
