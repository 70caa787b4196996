"""AxialResNet: attention by loops in numpy, a unit from it, and what every model of the library does."""

import types

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
from keras_vit import checkpoints, layers, recipes, tasks
from keras_vit.layers.axial import AxialBottleneckUnit

SIZES = {"depth": 8, "width": 32, "num_heads": 4, "classes": 3}


def randomize(layer, seed=0):
    generator = np.random.default_rng(seed)
    for variable in layer.weights:
        variable.assign(0.3 * generator.standard_normal(variable.shape) + ("gamma" in variable.path))


def build(input_shape=(16, 24, 3), seed=0, **arguments):
    model = keras_vit.AxialResNet(**{**SIZES, "input_shape": input_shape, **arguments})
    randomize(model, seed)
    return model


def images(shape=(2, 16, 24, 3)):
    return np.random.default_rng(1).uniform(-1, 1, shape).astype("float32")


def weights_of(layer):
    return {variable.path.partition("/")[2]: np.array(variable, "float64") for variable in layer.weights}


def group_norm(x, scale, offset, epsilon=1e-4):
    """Of one example `(H, W, C)`, in 32 groups."""
    groups = x.reshape(-1, 32, x.shape[-1] // 32)
    mean = groups.mean((0, 2), keepdims=True)
    variance = ((groups - mean) ** 2).mean((0, 2), keepdims=True)
    return ((groups - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * scale + offset


def attention(x, weights, axis, heads):
    """The attention of one example `(H, W, C)`, one query and head at a time."""
    channels = x.shape[2]
    size = channels // heads
    qkv = group_norm(x @ weights["qkv/kernel"], weights["gn_qkv/gamma"], weights["gn_qkv/beta"])
    table = weights["axis_embedding"]
    length = x.shape[axis]
    outputs = np.zeros(x.shape)
    for row, column in np.ndindex(*x.shape[:2]):
        line = qkv[:, column] if axis == 0 else qkv[row]
        position = (row, column)[axis]
        for head in range(heads):
            parts = line[:, 2 * size * head : 2 * size * (head + 1)]
            queries, keys, values = parts[:, : size // 2], parts[:, size // 2 : size], parts[:, size:]
            scores, seen = [], []
            for other in range(length):
                vector = table[other - position + length - 1]
                of_query, of_key, of_value = vector[: size // 2], vector[size // 2 : size], vector[size:]
                query = queries[position]
                scores.append(query @ keys[other] + query @ of_key + keys[other] @ of_query)
                seen.append(values[other] + of_value)
            shares = np.exp(np.array(scores) - max(scores))
            outputs[row, column, size * head : size * (head + 1)] = shares / shares.sum() @ np.array(seen)
    return group_norm(outputs, weights["gn_out/gamma"], weights["gn_out/beta"])


def convolution(x, kernel, strides=1):
    """Of one example by a standardized 1x1 kernel."""
    kernel = kernel - kernel.mean((0, 1, 2))
    kernel = kernel / np.sqrt((kernel**2).mean((0, 1, 2)) + 1e-10)
    return x[::strides, ::strides] @ kernel[0, 0]


@pytest.mark.parametrize("axis", ["height", pytest.param("width", marks=pytest.mark.one_backend)])
def test_attention_is_that_of_numpy(axis):
    layer = layers.AxialAttention(4, axis)
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 32)).astype("float32")
    layer.build(x.shape)
    randomize(layer)
    weights = weights_of(layer)
    expected = [attention(example.astype("float64"), weights, ("height", "width").index(axis), 4) for example in x]
    np.testing.assert_allclose(layer(x), expected, atol=2e-5)


@pytest.mark.one_backend
@pytest.mark.parametrize("strides", [1, 2])
def test_a_unit_is_that_of_numpy(strides):
    unit = AxialBottleneckUnit(32, strides, num_heads=4)
    x = np.random.default_rng(0).normal(size=(2, 4, 6, 32)).astype("float32")
    unit.build(x.shape)
    randomize(unit)
    weights = weights_of(unit)

    def part(name):
        return {key.partition("/")[2]: value for key, value in weights.items() if key.partition("/")[0] == name}

    def norm(x, name):
        return group_norm(x, weights[f"{name}/gamma"], weights[f"{name}/beta"])

    expected = []
    for example in x.astype("float64"):
        y = np.maximum(norm(convolution(example, weights["conv1/kernel"]), "gn1"), 0)
        y = attention(attention(y, part("attention_height"), 0, 4), part("attention_width"), 1, 4)
        if strides == 2:
            y = y.reshape(2, 2, 3, 2, 32).mean((1, 3))
        y = norm(convolution(np.maximum(y, 0), weights["conv3/kernel"]), "gn3")
        shortcut = norm(convolution(example, weights["conv_proj/kernel"], strides), "gn_proj")
        expected.append(np.maximum(shortcut + y, 0))
    np.testing.assert_allclose(unit(x), expected, atol=5e-5)


@pytest.mark.one_backend
def test_one_attention_is_full_attention_with_the_mask_of_its_rows():
    """With tables of zeros: over all positions, where only those of the same row are seen."""
    layer = layers.AxialAttention(2, "width")
    x = np.random.default_rng(0).normal(size=(1, 3, 4, 32)).astype("float32")
    layer.build(x.shape)
    randomize(layer)
    layer.axis_embedding.assign(np.zeros(layer.axis_embedding.shape))
    weights = weights_of(layer)
    qkv = group_norm(x[0] @ weights["qkv/kernel"], weights["gn_qkv/gamma"], weights["gn_qkv/beta"]).reshape(12, 2, 32)
    rows = np.arange(12) // 4
    outputs = []
    for head in range(2):
        query, key, value = np.split(qkv[:, head], (8, 16), -1)
        scores = query @ key.T + np.where(rows[:, None] == rows, 0, -1e9)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        outputs.append(shares / shares.sum(-1, keepdims=True) @ value)
    expected = group_norm(
        np.concatenate(outputs, -1).reshape(3, 4, 32), weights["gn_out/gamma"], weights["gn_out/beta"]
    )
    np.testing.assert_allclose(layer(x)[0], expected, atol=2e-5)


@pytest.mark.one_backend
def test_products_by_hand():
    """A unit of 4x6 positions, 32 channels inside: convolutions; queries, keys and values; scores and sums."""
    unit = AxialBottleneckUnit(32, num_heads=4)
    unit.build((None, 4, 6, 128))
    attention = 2 * 24 * 32 * 64 + (24 * 4 + 24 * 6) * (3 * 16 + 2 * 32)
    assert unit.multiply_accumulates((None, 4, 6, 128)) == 2 * 24 * 128 * 32 + attention


@pytest.mark.one_backend
def test_a_model_is_saved_loaded_and_resampled(tmp_path):
    model = build()
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(images()), model(images()))
    path = str(tmp_path / "model.npz")
    checkpoints.save(model, path)
    other = build(seed=1)
    checkpoints.load(other, path)
    np.testing.assert_array_equal(other(images()), model(images()))
    name, arguments = checkpoints.infer_architecture(path)
    inferred = getattr(keras_vit, name)(**arguments, weights=path)
    np.testing.assert_array_equal(inferred(images()), model(images()))
    larger = build((32, 40, 3), seed=2)
    report = checkpoints.load(larger, path)
    assert len(report.resampled) == 4 and {name.rpartition("/")[2] for name, *_ in report.resampled} == {
        "axis_embedding"
    }
    unit, resampled = model.get_layer("resnet_stem").units[0], larger.get_layer("resnet_stem").units[0]
    before, after = (np.array(u.attention_height.axis_embedding) for u in (unit, resampled))
    # Offsets of -3 to 3 become those of -7 to 7: the ends and zero stay, and between them it is linear.
    np.testing.assert_allclose(after[[0, 7, 14]], before[[0, 3, 6]], atol=1e-6)
    np.testing.assert_allclose(after[8], before[3] + 3 / 7 * (before[4] - before[3]), atol=1e-6)


@pytest.mark.one_backend
def test_the_weights_of_another_resnet_are_refused(tmp_path):
    checkpoints.save(
        keras_vit.models.BiTResNet(depth=8, width=32, version=1, input_shape=(16, 16, 3)), tmp_path / "r.npz"
    )
    with pytest.raises(ValueError, match="is of another architecture: it is BiTResNet .* version=1.* is AxialResNet"):
        build((16, 16, 3), weights=str(tmp_path / "r.npz"))


@pytest.mark.one_backend
def test_it_is_a_task_and_computes_in_bfloat16():
    inputs = types.SimpleNamespace(
        image_shape=(16, 24, 3),
        train=types.SimpleNamespace(class_names=tuple("abc")),
        model_preprocessing=lambda: None,
    )
    sizes = {name: value for name, value in SIZES.items() if name != "classes"}
    task = tasks.get(ConfigDict(recipes.defaults(architecture="AxialResNet", model=sizes)))
    model = task.build_model(inputs)
    batch = (images(), np.eye(3, dtype="float32")[:2], np.ones(2, "float32"))
    losses, _ = task.losses_and_metrics(model, batch, training=True)
    np.testing.assert_allclose(losses, 2 * [np.log(3)], rtol=1e-6)
    layer = layers.AxialAttention(4, "height", dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(layer(np.ones((1, 3, 5, 32), "float32")).dtype) == "bfloat16"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 34}, "`depth` must be one of 8, 26"),
        ({"width": 48}, "`width` must be a multiple of 32"),
        ({"num_heads": 3}, "a multiple of 32 and of twice the heads. Received: channels=32, num_heads=3"),
        ({"input_shape": (None, 16, 3)}, "Each offset along the height has a vector, so it must be static"),
    ],
)
def test_what_is_not_possible_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
