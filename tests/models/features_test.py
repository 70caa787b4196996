"""Tests of `features`, `FeatureModel` and `intermediates`."""

import concurrent.futures

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit

from ..shared import (
    JIT,
    THREE_LAYERS,
    assert_close,
    images_for,
    randomize,
    to_numpy,
)


def build(**changes):
    model = keras_vit.VisionTransformer(
        **THREE_LAYERS | {"dropout": 0.1, "stochastic_depth": 0.2} | changes
    )
    return randomize(model, 0.3, seed=1)


def reference(model, number, images):
    """Returns the normalized tokens of a layer, computed without `features`."""
    tokens = keras.Model(model.input, model.get_layer("dropout").output)(images)
    for block in model.blocks[:number]:
        tokens = block.encode(tokens)
    return to_numpy(model.norm(tokens))


# Models that halve the pixel values for the Vision Transformer that they contain.


class Subclass(keras.Model):
    def __init__(self, vit):
        super().__init__()
        self.vit = vit

    def call(self, images, training=False):
        return self.vit(images / 2, training=training)


def sequential(vit):
    half = keras.layers.Rescaling(0.5)
    return keras.Sequential([keras.Input(vit.input_shape[1:]), half, vit, keras.layers.Dense(2)])


def wrapped_twice(vit):
    inner = sequential(vit)
    images = keras.Input(vit.input_shape[1:])
    return keras.Model(images, keras.layers.Softmax()(inner(images)))


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_registers": 2},
        pytest.param({"classifier": "gap"}, marks=pytest.mark.one_backend),
        pytest.param({"resnet_blocks": (1,), "patch_size": 2}, marks=pytest.mark.one_backend),
    ],
    ids=str,
)
def test_features_match_the_blocks_of_the_model(arguments):
    model = build(**arguments)
    images = images_for(model)
    layers = [3, 0, 1, -1]
    all_tokens = keras_vit.features(model, images, layers, tokens="all")
    maps = keras_vit.features(model, images, layers, tokens="patch", grid=True)
    for number, tokens, grid in zip([3, 0, 1, 3], all_tokens, maps):
        expected = reference(model, number, images)
        np.testing.assert_allclose(tokens, expected, atol=2e-5)
        patches = expected[:, model.num_prefix_tokens :]
        np.testing.assert_allclose(grid, patches.reshape(2, 3, 2, 12), atol=2e-5)


@pytest.mark.parametrize(
    "wrap",
    [
        wrapped_twice,
        pytest.param(sequential, marks=pytest.mark.one_backend),
        pytest.param(Subclass, marks=pytest.mark.one_backend),
    ],
)
def test_features_apply_layers_before_the_transformer(wrap):
    vit = build()
    images = images_for(vit)
    logits = to_numpy(vit(images))
    expected = keras_vit.features(vit, images / 2, layers=[1, 3], tokens="all")
    features = keras_vit.features(wrap(vit), images, layers=[1, 3], tokens="all")
    np.testing.assert_allclose(features, expected, atol=1e-6)
    # `features` does not change the model.
    np.testing.assert_array_equal(vit(images), logits)


@pytest.mark.one_backend
@pytest.mark.parametrize("layer, num_blocks", [(0, 0), (2, 2), ([0, 1], 1)])
def test_feature_model_trains_only_layers_that_affect_its_output(layer, num_blocks):
    vit = build()
    model = keras_vit.FeatureModel(vit, layer, norm=False)
    expected = [vit.patch_encoder, vit.class_token, vit.positions[0], *vit.blocks[:num_blocks]]
    expected_ids = {id(variable) for layer in expected for variable in layer.trainable_variables}
    assert {id(variable) for variable in model.trainable_variables} == expected_ids


@pytest.mark.one_backend
def test_mixed_precision_features_are_close_to_float32():
    exact = build()
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = build()
    images = images_for(model)
    features = keras_vit.features(model, images, [1, 3], tokens="all")
    expected = keras_vit.features(exact, images, [1, 3], tokens="all")
    for ours, theirs in zip(features, expected):
        assert ours.dtype == np.float32
        assert_close(ours, theirs, tolerance=0.1)


def test_images_may_be_an_array_an_image_or_a_dataset():
    model = build()
    images = images_for(model, 5)
    expected = keras_vit.features(model, images, np.int64(1))
    image_features = keras_vit.features(model, images[3], 1)
    np.testing.assert_allclose(image_features, expected[3], atol=1e-5)
    assert keras_vit.features(model, images[:0], 1, tokens="patch").shape == (0, 6, 12)
    singles = tf.data.Dataset.from_tensor_slices((images, np.arange(5)))
    for source in (images, singles, singles.map(lambda image, label: image).batch(3)):
        features = keras_vit.features(model, source, 1, batch_size=2)
        np.testing.assert_allclose(features, expected, atol=1e-5)


@pytest.mark.one_backend
def test_layers_after_the_last_requested_are_skipped(monkeypatch):
    model = build()
    numbers = []

    def recording_run_block(number, tokens, *_):
        numbers.append(number)
        return tokens

    monkeypatch.setattr(model, "run_block", recording_run_block)
    keras_vit.features(model, images_for(model), [1, 2], tokens="patch")
    assert numbers == [1, 2]


@pytest.mark.full
def test_feature_model_trains_in_another_model(tmp_path):
    model = build()
    images = images_for(model)
    feature_model = keras_vit.FeatureModel(model, [2, 3], tokens="patch", grid=True)
    inputs = keras.Input(model.input_shape[1:])
    whole = keras.Model(inputs, keras.layers.Concatenate()(feature_model(inputs)))
    whole.compile("sgd", "mse", jit_compile=JIT)
    before = to_numpy(model.patch_encoder.kernel)
    whole.train_on_batch(images, np.ones((2, 3, 2, 24)))
    assert np.abs(to_numpy(model.patch_encoder.kernel) - before).max() > 0
    expected = keras_vit.features(model, images, [2, 3], "patch", grid=True)
    feature_model.save(tmp_path / "features.keras")
    loaded = keras.models.load_model(tmp_path / "features.keras")
    for ours, theirs in zip(loaded(images), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_hybrid_patch_stride_is_the_stem_stride():
    # The stride does not divide the image size, so the last patches extend beyond the image.
    model = build(input_shape=(36, 20, 3), patch_size=1, resnet_blocks=(1, 1))
    assert model.grid == (5, 3) and model.patch_stride == 8


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "constructor", [keras_vit.VisionTransformer, keras_vit.MaskedPatchVisionTransformer]
)
def test_features_of_a_model_inside_a_feature_model(constructor):
    model = constructor(**THREE_LAYERS)
    images = images_for(model)
    maps = keras_vit.FeatureModel(model, tokens="patch", grid=True)
    outer = keras.Sequential([keras.Input(model.input_shape[1:]), maps, keras.layers.Conv2D(2, 1)])
    np.testing.assert_array_equal(
        keras_vit.features(outer, images, 2), keras_vit.features(model, images, 2)
    )


@pytest.mark.one_backend
def test_features_are_thread_safe():
    model = build()
    images = images_for(model)
    functions = [lambda: keras_vit.features(model, images, 2), lambda: to_numpy(model(images))]
    expected = [function() for function in functions]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(function) for function in 10 * functions]
    for number, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(), expected[number % 2])


@pytest.mark.one_backend
def test_intermediates_match_features_and_logits():
    model = build(representation_size=7)
    images = images_for(model)
    result = model.intermediates(images, attention=True)
    assert np.shape(result["attention"]) == (3, 2, 3, 7, 7)
    np.testing.assert_allclose(np.sum(result["attention"], -1), 1, atol=1e-5)
    for number, tokens in enumerate(result["tokens"]):
        np.testing.assert_allclose(model.norm(tokens), reference(model, number, images), atol=2e-5)
    np.testing.assert_array_equal(model.norm(result["tokens"][3]), result["encoded"])
    np.testing.assert_allclose(model.head(result["pre_logits"]), model(images), atol=2e-5)
    assert "attention" not in model.intermediates(images)
