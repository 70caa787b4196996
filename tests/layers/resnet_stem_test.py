"""Tests of the ResNet stem and its layers: standardized convolutions, group norms and units."""

import keras
import numpy as np
import pytest

from keras_vit.layers import ResNetStem
from keras_vit.layers.resnet_stem import BottleneckUnit
from keras_vit.layers.std_conv import StdConv2D, group_norm

from .. import numpy_reference
from ..shared import to_numpy


def _standardize(kernel):
    kernel = kernel.astype("float64")
    return (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_standardization_adds_epsilon_to_the_deviation(scale):
    # Without the epsilon 1e-5, the result at scale 1e-5 would differ.
    random = np.random.default_rng(0)
    kernel = (scale * random.normal(3, 1, size=(3, 3, 4, 6))).astype("float32")
    images = random.normal(size=(1, 3, 3, 4)).astype("float32")
    layer = StdConv2D(6, 3)
    layer.build(images.shape)
    layer.kernel.assign(kernel)
    middle = np.einsum("hwc,hwcf->f", images[0], _standardize(kernel))
    np.testing.assert_allclose(to_numpy(layer(images))[0, 1, 1], middle, rtol=2e-3, atol=1e-4)


def test_standardization_is_float32_under_mixed_precision():
    # The mean is far above the standard deviation, so bfloat16 would round all kernel values to the
    # same number.
    kernel = (1000 + np.random.default_rng(0).normal(size=(1, 1, 64, 2)) * 0.1).astype("float32")
    layer = StdConv2D(2, 1, dtype="mixed_bfloat16")
    layer.build((1, 1, 1, 64))
    layer.kernel.assign(kernel)
    image = np.zeros((1, 1, 1, 64), "float32")
    image[..., 0] = 1
    expected = _standardize(kernel)[0, 0, 0]
    np.testing.assert_allclose(to_numpy(layer(image)).ravel(), expected, rtol=2e-2, atol=2e-2)


def test_standardization_ignores_kernel_scale_and_mean():
    layer = StdConv2D(2, 3)
    layer.build((1, 4, 4, 3))
    images = np.random.default_rng(0).normal(size=(1, 4, 4, 3)).astype("float32")
    before = to_numpy(layer(images))
    layer.kernel.assign(3 * to_numpy(layer.kernel) + 5)
    np.testing.assert_allclose(to_numpy(layer(images)), before, atol=1e-3)


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


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_group_norm_has_32_groups_and_epsilon_1e_6(scale):
    x = (scale * np.random.default_rng(0).normal(size=(2, 3, 5, 64))).astype("float32")
    expected = numpy_reference.group_norm(x.astype("float64"), epsilon=1e-6)
    np.testing.assert_allclose(to_numpy(group_norm("gn")(x)), expected, atol=2e-5)


@pytest.mark.parametrize("side", [7, 8, 31, 32, 33, 75])
@pytest.mark.parametrize("blocks", [(), (1,), (1, 1), (1, 1, 1)])
def test_compute_output_shape_matches_the_output(side, blocks):
    stem = ResNetStem(blocks, width=32)
    shape = stem.compute_output_shape((None, side, 2 * side, 3))
    images = keras.Input(shape=(side, 2 * side, 3))
    assert keras.Model(images, stem(images)).output_shape == shape


def test_new_unit_returns_nonnegative_input():
    unit = BottleneckUnit(32)
    x = np.random.default_rng(0).uniform(size=(1, 4, 4, 128)).astype("float32")
    np.testing.assert_allclose(to_numpy(unit(x)), x, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocks": 3}, r"a tuple such as .* Received: blocks=3"),
        ({"blocks": (3, 0)}, "`blocks` must be an integer of 1 or more. Received: blocks=0"),
        ({"width": 48}, "`width` must be a multiple of 32. Received: width=48"),
    ],
)
def test_rejects_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ResNetStem(**arguments)
