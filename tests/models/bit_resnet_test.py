"""Tests of both versions of the BiT ResNets. Reference outputs and parameter counts come from
big_vision."""

import numpy as np
import pytest

import keras_vit

from ..numpy_reference import group_norm
from ..shared import images_for, random_images, randomize, to_numpy
from .reference_weights import fill_with_reference_weights, reference_images


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "count", "first_values", "sums"),
    [
        (
            {"version": 1},
            23_528_522,
            [
                [-0.095741, -0.567353, -3.531548, -0.593019, -2.573645, -1.917668],
                [1.380982, -2.788460, -3.820574, 2.297627, -0.355353, -1.848836],
            ],
            [-12.44810, -6.48909],
        ),
        (
            {"pool_padding": "minus_infinity"},
            23_520_842,
            [
                [0.582278, -1.095563, -3.073442, 0.296183, -0.462352, 0.542255],
                [0.405084, -0.389384, -2.542193, -1.695210, -0.030766, -0.124395],
            ],
            [-2.87574, -2.83280],
        ),
    ],
    ids=["version 1", "version 2"],
)
def test_outputs_match_big_vision(arguments, count, first_values, sums):
    model = keras_vit.BiT_R50x1(input_shape=(64, 64, 3), classes=10, **arguments)
    assert model.count_params() == count
    fill_with_reference_weights(model)
    outputs = model.predict(reference_images(model, 2), verbose=0)
    np.testing.assert_allclose(outputs[:, :6], first_values, atol=5e-4)
    np.testing.assert_allclose(outputs.astype("float64").sum(axis=1), sums, atol=5e-3)


@pytest.mark.parametrize(
    ("pool_padding", "padded_value"), [("zeros", 0.0), ("minus_infinity", -np.inf)]
)
def test_pool_padding_sets_the_border_of_version_2(pool_padding, padded_value):
    images = random_images((1, 16, 16, 3))
    layer = keras_vit.PreActivationResNet((), pool_padding=pool_padding)
    layer.build(images.shape)
    randomize(layer.conv_root, seed=1)
    x = to_numpy(layer.conv_root(images))
    # In the first pooling window, the padding decides the maxima of some channels.
    assert (x[0, :2, :2].max(axis=(0, 1)) < 0).any()
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=padded_value)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    pooled = windows[:, ::2, ::2].max(axis=(-2, -1))
    expected = np.maximum(group_norm(pooled, epsilon=1e-5), 0)
    np.testing.assert_allclose(to_numpy(layer(images)), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 34}, "`depth` must be one of 8, 26, 50"),
        ({"depth": 50, "version": 3}, "`version` must be one of"),
        ({"depth": 50, "pool_padding": "same"}, "`pool_padding` must be one of"),
        ({"depth": 50, "width_factor": 0}, "`width_factor` must be an integer"),
    ],
)
def test_rejects_out_of_range_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.models.BiTResNet(**arguments)


@pytest.mark.one_backend
@pytest.mark.parametrize("version", [1, 2])
def test_narrow_resnet_round_trips_through_npz(version, tmp_path):
    sizes = {"depth": 8, "width": 32, "version": version, "classes": 3}
    model = randomize(keras_vit.BiTResNet(**sizes, input_shape=(16, 24, 3)))
    keras_vit.checkpoints.save(model, tmp_path / "weights.npz")
    loaded = keras_vit.from_pretrained(tmp_path / "weights.npz")
    assert sizes.items() <= loaded.arguments.items()
    images = images_for(model, seed=1)
    np.testing.assert_array_equal(loaded(images), model(images))
