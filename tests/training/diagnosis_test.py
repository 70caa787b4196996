"""Tests of the search for the first layer whose output is not finite."""

import numpy as np
import pytest

from keras_vit.training.diagnosis import first_nonfinite_layer

from ..shared import random_images
from . import tiny


@pytest.fixture
def model():
    return tiny.new_state(num_layers=2).model


def _diagnose(model, first_pixel=0.0, num_batches=3):
    images = random_images((8, 4, 6, 3))
    images[0, 0, 0, 0] = first_pixel
    return first_nonfinite_layer(model, images, num_batches)


def test_finite_model(model):
    assert "is finite in every layer" in _diagnose(model)


def test_nonfinite_weights(model):
    model.head.kernel.assign(model.head.kernel.numpy() * np.inf)
    assert "weights of layer 'head'" in _diagnose(model)


@pytest.mark.parametrize("num_batches", [3, 100])
def test_overflow_of_finite_weights(num_batches, model):
    block = model.get_layer("encoderblock_1")
    block.mlp_1.bias.assign(block.mlp_1.bias.numpy() + 1e38)
    block.mlp_2.kernel.assign(block.mlp_2.kernel.numpy() * 1e10)
    line = _diagnose(model, num_batches=num_batches)
    assert "output is not finite is 'encoderblock_1'" in line


def test_nonfinite_images(model):
    assert "'images'" in _diagnose(model, first_pixel=np.nan)
