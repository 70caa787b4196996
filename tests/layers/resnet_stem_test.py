"""Tests of the ResNet stem and its layers: standardized convolutions, group norms and units."""

import keras
import numpy as np
import pytest

from keras_vit.layers import ResNetStem
from keras_vit.layers.preactivation_resnet import PreActivationUnit
from keras_vit.layers.resnet_stem import BottleneckUnit
from keras_vit.layers.std_conv import StdConv2D, group_norm

from .. import numpy_reference
from ..shared import to_numpy


def _standardize(kernel, variance_epsilon=None):
    kernel = kernel.astype("float64")
    if variance_epsilon is None:
        deviation = kernel.std((0, 1, 2)) + 1e-5
    else:
        deviation = np.sqrt(kernel.var((0, 1, 2)) + variance_epsilon)
    return (kernel - kernel.mean((0, 1, 2))) / deviation


@pytest.mark.parametrize("variance_epsilon", [None, 1e-10])
def test_standardized_convolution_matches_numpy(variance_epsilon):
    layer = StdConv2D(4, 3, variance_epsilon=variance_epsilon)
    layer.build((None, 1, 1, 2))
    # At this scale, the epsilons matter.
    kernel = 1e-5 * np.random.default_rng(0).standard_normal((3, 3, 2, 4))
    layer.kernel.assign(kernel)
    pixel = np.array([[[[1.0, 2.0]]]], "float32")
    # Only the middle of the kernel meets the pixel.
    expected = pixel @ _standardize(kernel, variance_epsilon)[1, 1]
    np.testing.assert_allclose(to_numpy(layer(pixel)), expected, rtol=1e-4)


def test_standardization_is_float32_under_mixed_precision():
    # The mean is far above the standard deviation, so bfloat16 would round all kernel values to the
    # same number.
    kernel = (1000 + np.random.default_rng(0).normal(size=(1, 1, 64, 2)) * 0.1).astype("float32")
    layer = StdConv2D(2, 1, dtype="mixed_bfloat16")
    layer.build((1, 1, 1, 64))
    layer.kernel.assign(kernel)
    one_channel = np.eye(1, 64, dtype="float32").reshape(1, 1, 1, 64)
    expected = _standardize(kernel)[:, :, :1]
    np.testing.assert_allclose(to_numpy(layer(one_channel)), expected, rtol=2e-2, atol=2e-2)


def test_gradients_flow_through_the_standardization():
    # The output does not depend on the kernel's mean, so a gradient through the standardization has
    # mean 0.
    random = np.random.default_rng(0)
    model = keras.Sequential([keras.Input((4, 4, 3)), StdConv2D(2, 3)])
    kernel = to_numpy(model.layers[0].kernel)
    model.compile("sgd", "mse")
    model.train_on_batch(random.normal(size=(2, 4, 4, 3)), random.normal(size=(2, 4, 4, 2)))
    change = to_numpy(model.layers[0].kernel) - kernel
    assert np.abs(change).max() > 1e-3
    np.testing.assert_allclose(change.mean((0, 1, 2)), 0, atol=1e-6)


def test_group_norms_have_32_groups_and_the_epsilon_of_their_version():
    unit = PreActivationUnit(32)
    unit.build((2, 3, 5, 64))
    # At this scale, the epsilons matter.
    x = 1e-3 * np.random.default_rng(0).normal(size=(2, 3, 5, 64)).astype("float32")
    for norm, epsilon in ((group_norm("gn"), 1e-6), (unit.gn1, 1e-5)):
        expected = numpy_reference.group_norm(x.astype("float64"), epsilon)
        np.testing.assert_allclose(to_numpy(norm(x)), expected, atol=2e-5)


def test_new_unit_returns_nonnegative_input():
    unit = BottleneckUnit(32)
    x = np.random.default_rng(0).uniform(size=(1, 4, 4, 128)).astype("float32")
    np.testing.assert_allclose(to_numpy(unit(x)), x, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocks": 3}, "`blocks` must be a tuple"),
        ({"blocks": (3, 0)}, "positive integers.*blocks=.3, 0."),
        ({"width": 48}, "a multiple of 32"),
    ],
)
def test_rejects_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ResNetStem(**arguments)
