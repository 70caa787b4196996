"""Tests of both versions of the BiT ResNets. Reference outputs and parameter counts come from
big_vision."""

import zlib

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.names import canonical_shapes, canonical_variables, is_group_norm
from keras_vit.layers.resnet_stem import BIT_UNITS

from ..shared import random_images, randomize


def deterministic(model, wide_norms=False):
    """Fills a model with the reference weights. A hash of each array's name seeds its values."""
    shapes = canonical_shapes(model)
    for name, variable in canonical_variables(model).items():
        shape = shapes[name]
        if wide_norms and is_group_norm(name):
            shape = (1, 1, 1, *shape)
        values = (
            np.random.RandomState(zlib.crc32(name.encode()))
            .standard_normal(shape)
            .astype("float32")
        )
        if name.endswith("scale"):
            values = 1 + 0.1 * values
        elif name.endswith("bias"):
            values = 0.1 * values
        elif name.endswith("kernel"):
            values = 0.05 * values
        else:
            values = 0.5 * values
        variable.assign(values.reshape(variable.shape))


def images(batch, size):
    return np.random.RandomState(0).uniform(-1, 1, (batch, size, size, 3)).astype("float32")


def first_and_sum(model, inputs):
    outputs = model.predict(inputs, verbose=0)
    return outputs[:, :6], outputs.astype("float64").sum(axis=1)


def assert_agrees(model, inputs, rows, sums):
    outputs, totals = first_and_sum(model, inputs)
    np.testing.assert_allclose(outputs, rows, atol=5e-4)
    np.testing.assert_allclose(totals, sums, atol=5e-4 * model.output_shape[-1])


@pytest.mark.one_backend
def test_version_1_matches_bit_py():
    model = keras_vit.BiT_R50x1(version=1, input_shape=(64, 64, 3), classes=10)
    assert model.count_params() == 23_528_522
    deterministic(model)
    rows = [
        [-0.095741, -0.567353, -3.531548, -0.593019, -2.573645, -1.917668],
        [1.380982, -2.788460, -3.820574, 2.297627, -0.355353, -1.848836],
    ]
    assert_agrees(model, images(2, 64), rows, [-12.44810, -6.48909])


@pytest.mark.one_backend
def test_version_2_matches_bit_paper_py():
    model = keras_vit.BiT_R50x1(pool_padding="minus_infinity", input_shape=(64, 64, 3), classes=10)
    assert model.count_params() == 23_520_842
    deterministic(model, wide_norms=True)
    rows = [
        [0.582278, -1.095563, -3.073442, 0.296183, -0.462352, 0.542255],
        [0.405084, -0.389384, -2.542193, -1.695210, -0.030766, -0.124395],
    ]
    assert_agrees(model, images(2, 64), rows, [-2.87574, -2.83280])


@pytest.mark.slow
@pytest.mark.one_backend
def test_both_versions_match_the_reference_at_224_pixels():
    model = keras_vit.BiT_R50x1(version=1)
    deterministic(model)
    assert_agrees(
        model,
        images(1, 224),
        [[-1.002493, 2.128745, 1.234478, 1.395775, -0.396690, 0.137210]],
        [28.45653],
    )
    model = keras_vit.BiT_R50x1(pool_padding="minus_infinity")
    deterministic(model, wide_norms=True)
    assert_agrees(
        model,
        images(1, 224),
        [[-0.047829, 0.698343, 0.064262, 1.087319, 0.555321, 0.287160]],
        [2.14687],
    )


@pytest.mark.one_backend
def test_resnet_built_from_layers_matches_the_reference():
    inputs = x = keras.Input((64, 64, 3))
    x = keras_vit.ResNetStem((1, 1, 1, 1), name="resnet_stem")(x)
    x = keras_vit.Patches(1, name="patches")(x)
    x = keras_vit.PatchEncoder(32, name="embedding")(x)
    x = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    model = keras.Model(inputs, keras.layers.Dense(10, name="head")(x))
    assert model.count_params() == 8_081_834
    deterministic(model)
    rows = [
        [-0.199816, -0.539917, -0.001082, 0.372289, -0.407471, -0.199167],
        [0.003441, -0.272232, -0.207378, -0.009367, -0.320782, 0.062903],
    ]
    outputs, sums = first_and_sum(model, images(2, 64))
    np.testing.assert_allclose(outputs, rows, atol=1e-5)
    np.testing.assert_allclose(sums, [-1.33047, -1.65406], atol=1e-4)


def test_pool_padding_changes_the_border_of_version_2():
    inputs = images(1, 64)
    outputs = {}
    for padding in ("zeros", "minus_infinity"):
        layer = keras_vit.PreActivationResNet((), pool_padding=padding)
        layer.build(inputs.shape)
        kernel = np.random.RandomState(1).standard_normal(layer.conv_root.kernel.shape)
        layer.conv_root.kernel.assign(kernel)
        x = layer.conv_root(inputs)
        outputs[padding] = keras.ops.convert_to_numpy(layer(inputs)), keras.ops.convert_to_numpy(x)
    x = outputs["zeros"][1]
    corner = x[0, :2, :2].max(axis=(0, 1))  # the pixels in the first pooling window
    assert (corner < 0).any()
    zeros, infinity = (_norm_relu(_pool(x, value)) for value in (0.0, -np.inf))
    np.testing.assert_allclose(outputs["zeros"][0], zeros, atol=1e-5)
    np.testing.assert_allclose(outputs["minus_infinity"][0], infinity, atol=1e-5)
    assert np.abs(zeros - infinity).max() > 1e-2


def _pool(x, value):
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=value)
    return np.max(
        [x[:, i : i + 31 : 2, j : j + 31 : 2] for i in range(3) for j in range(3)], axis=0
    )


def _norm_relu(x):
    grouped = x.reshape(*x.shape[:3], 32, -1)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    variance = grouped.var((1, 2, 4), keepdims=True)
    return np.maximum((grouped - mean) / np.sqrt(variance + 1e-5), 0).reshape(x.shape)


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
    counted = []

    def count(layer, shape=(), **_):  # count instead of allocating up to a billion parameters
        counted.append(int(np.prod(shape)))

    monkeypatch.setattr(keras.layers.Layer, "add_weight", count)
    depth, width = size
    counts = []
    for layer in (keras_vit.ResNetStem, keras_vit.PreActivationResNet):
        counted.clear()
        layer(BIT_UNITS[depth], 64 * width).build((None, 224, 224, 3))
        features = sum(counted)
        counts += [
            features,
            *(features + 2048 * width * classes + classes for classes in (1000, 21843)),
        ]
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
    x = np.random.RandomState(0).uniform(-1, 1, (1, 32, 48, 3)).astype("float32")
    np.testing.assert_array_equal(model.predict(x, verbose=0), copy.predict(x, verbose=0))


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
    again = keras_vit.BiTResNet(**inferred, weights=path)
    assert name == "BiTResNet" and inferred["width"] == 32 and inferred["version"] == version
    x = random_images((2, 16, 24, 3), seed=1)
    np.testing.assert_array_equal(again(x), model(x))
