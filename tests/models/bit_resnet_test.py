"""Tests of both versions of the BiT ResNets. Reference outputs and parameter counts come from
big_vision."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers.resnet_stem import BIT_UNITS

from ..numpy_reference import group_norm
from ..shared import images_for, random_images, randomize, to_numpy
from .reference_weights import fill_with_reference_weights, reference_images


def assert_agrees(model, images, first_values, sums, tolerance=5e-4):
    """Compares the first six outputs of each image, and the sums of the outputs."""
    outputs = model.predict(images, verbose=0)
    np.testing.assert_allclose(outputs[:, :6], first_values, atol=tolerance)
    totals = outputs.astype("float64").sum(axis=1)
    np.testing.assert_allclose(totals, sums, atol=tolerance * model.output_shape[-1])


@pytest.mark.one_backend
def test_version_1_matches_bit_py():
    model = keras_vit.BiT_R50x1(version=1, input_shape=(64, 64, 3), classes=10)
    assert model.count_params() == 23_528_522
    fill_with_reference_weights(model)
    first_values = [
        [-0.095741, -0.567353, -3.531548, -0.593019, -2.573645, -1.917668],
        [1.380982, -2.788460, -3.820574, 2.297627, -0.355353, -1.848836],
    ]
    assert_agrees(model, reference_images(model, 2), first_values, [-12.44810, -6.48909])


@pytest.mark.one_backend
def test_version_2_matches_bit_paper_py():
    model = keras_vit.BiT_R50x1(pool_padding="minus_infinity", input_shape=(64, 64, 3), classes=10)
    assert model.count_params() == 23_520_842
    fill_with_reference_weights(model)
    first_values = [
        [0.582278, -1.095563, -3.073442, 0.296183, -0.462352, 0.542255],
        [0.405084, -0.389384, -2.542193, -1.695210, -0.030766, -0.124395],
    ]
    assert_agrees(model, reference_images(model, 2), first_values, [-2.87574, -2.83280])


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "first_values", "total"),
    [
        (
            {"version": 1},
            [-1.002493, 2.128745, 1.234478, 1.395775, -0.396690, 0.137210],
            28.45653,
        ),
        (
            {"pool_padding": "minus_infinity"},
            [-0.047829, 0.698343, 0.064262, 1.087319, 0.555321, 0.287160],
            2.14687,
        ),
    ],
    ids=["version 1", "version 2"],
)
def test_versions_match_the_reference_at_224_pixels(arguments, first_values, total):
    model = keras_vit.BiT_R50x1(**arguments)
    fill_with_reference_weights(model)
    assert_agrees(model, reference_images(model, 1), [first_values], [total])


@pytest.mark.one_backend
def test_resnet_built_from_layers_matches_the_reference():
    inputs = x = keras.Input((64, 64, 3))
    x = keras_vit.ResNetStem((1, 1, 1, 1), name="resnet_stem")(x)
    x = keras_vit.Patches(1, name="patches")(x)
    x = keras_vit.PatchEncoder(32, name="embedding")(x)
    x = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    model = keras.Model(inputs, keras.layers.Dense(10, name="head")(x))
    assert model.count_params() == 8_081_834
    fill_with_reference_weights(model)
    first_values = [
        [-0.199816, -0.539917, -0.001082, 0.372289, -0.407471, -0.199167],
        [0.003441, -0.272232, -0.207378, -0.009367, -0.320782, 0.062903],
    ]
    images = reference_images(model, 2)
    assert_agrees(model, images, first_values, [-1.33047, -1.65406], tolerance=1e-5)


@pytest.mark.parametrize(
    ("pool_padding", "padded_value"), [("zeros", 0.0), ("minus_infinity", -np.inf)]
)
def test_pool_padding_sets_the_border_of_version_2(pool_padding, padded_value):
    images = random_images((1, 64, 64, 3))
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


# Maps (depth, width factor) to parameter counts. The first three counts are for version 1: without
# a head, with 1,000 classes and with 21,843 classes. The last three counts are for version 2.
COUNTS = {
    (26, 1): (13_946_176, 15_995_176, 58_702_483, 13_938_496, 15_987_496, 58_694_803),
    (50, 1): (23_508_032, 25_557_032, 68_264_339, 23_500_352, 25_549_352, 68_256_659),
    (50, 2): (93_907_072, 98_004_072, 183_397_843, 93_891_712, 97_988_712, 183_382_483),
    (50, 3): (211_197_120, 217_342_120, 345_422_355, 211_174_080, 217_319_080, 345_399_315),
    (101, 1): (42_500_160, 44_549_160, 87_256_467, 42_492_480, 44_541_480, 87_248_787),
    (101, 3): (381_812_928, 387_957_928, 516_038_163, 381_789_888, 387_934_888, 516_015_123),
    (152, 1): (58_143_808, 60_192_808, 102_900_115, 58_136_128, 60_185_128, 102_892_435),
    (152, 2): (232_253_568, 236_350_568, 321_744_339, 232_238_208, 236_335_208, 321_728_979),
    (152, 4): (928_370_944, 936_563_944, 1_107_330_643, 928_340_224, 936_533_224, 1_107_299_923),
    (200, 3): (562_511_040, 568_656_040, 696_736_275, 562_488_000, 568_633_000, 696_713_235),
}


@pytest.mark.one_backend
@pytest.mark.parametrize("size", COUNTS, ids=lambda size: f"R{size[0]}x{size[1]}")
def test_parameter_counts_match_reference(size, monkeypatch):
    weight_sizes = []

    def count(layer, shape=(), **_):
        weight_sizes.append(int(np.prod(shape)))

    # Count the parameters without allocating up to a billion of them.
    monkeypatch.setattr(keras.layers.Layer, "add_weight", count)
    depth, width = size
    counts = []
    for layer in (keras_vit.ResNetStem, keras_vit.PreActivationResNet):
        weight_sizes.clear()
        layer(BIT_UNITS[depth], 64 * width).build((None, 224, 224, 3))
        counts.append(sum(weight_sizes))
        for classes in (1000, 21843):
            head = 2048 * width * classes + classes
            counts.append(sum(weight_sizes) + head)
    assert tuple(counts) == COUNTS[size]


def test_bit_constructors_are_in_the_count_table():
    names = [name for name in keras_vit.families.CONSTRUCTORS if name.startswith("BiT_R")]
    assert len(names) == 9
    for name in names:
        depth, width = map(int, name.removeprefix("BiT_R").split("x"))
        assert (depth, width) in COUNTS


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"depth": 34}, "`depth` must be one of 8, 26, 50"),
        ({"depth": 50, "version": 3}, "`version` must be one of 1, 2"),
        (
            {"depth": 50, "pool_padding": "same"},
            "`pool_padding` must be one of zeros, minus_infinity",
        ),
        ({"depth": 50, "width_factor": 0}, "`width_factor` must be an integer of 1 or more"),
        ({"depth": 50, "width": 48}, "`width` must be a multiple of 32"),
    ],
)
def test_rejects_out_of_range_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.models.BiTResNet(**arguments)


@pytest.mark.one_backend
@pytest.mark.parametrize("version", [1, 2])
def test_config_round_trip_preserves_outputs(version):
    model = keras_vit.models.BiTResNet(depth=8, version=version, input_shape=(32, 48, 3), classes=3)
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    images = images_for(model)
    np.testing.assert_array_equal(model.predict(images, verbose=0), copy.predict(images, verbose=0))


@pytest.mark.one_backend
def test_features_have_2048_values():
    model = keras_vit.BiT_R50x1(input_shape=(40, 32, 3), include_top=False)
    assert model.output_shape == (None, 2048)


@pytest.mark.one_backend
@pytest.mark.parametrize("version", [1, 2])
def test_narrow_resnet_round_trips_through_npz(version, tmp_path):
    arguments = {
        "depth": 8,
        "width": 32,
        "version": version,
        "input_shape": (16, 24, 3),
        "classes": 3,
    }
    model = keras_vit.BiTResNet(**arguments)
    randomize(model)
    path = str(tmp_path / "weights.npz")
    keras_vit.checkpoints.save(model, path)
    name, inferred = keras_vit.checkpoints.infer_architecture(path)
    assert name == "BiTResNet" and inferred["width"] == 32 and inferred["version"] == version
    loaded = keras_vit.BiTResNet(**inferred, weights=path)
    images = images_for(model, seed=1)
    np.testing.assert_array_equal(loaded(images), model(images))
