"""Tests of `features`, `FeatureModel` and `intermediates`."""

import concurrent.futures

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit

from ..shared import (
    JIT,
    SIZES,
    THREE_LAYERS,
    assert_close,
    images_for,
    random_images,
    randomize,
    to_numpy,
)

KINDS = {
    "token": {},
    "token without position": {"class_token_position": False, "position_embedding": "sincos2d"},
    "gap": {"classifier": "gap"},
    "hybrid": {"resnet_blocks": (1,), "patch_size": 2},
}


def build(**changes):
    model = keras_vit.VisionTransformer(
        **THREE_LAYERS | {"dropout": 0.1, "stochastic_depth": 0.2} | changes
    )
    return randomize(model, 0.3, seed=1)


def reference(model, number, images):
    """Returns the normalized tokens of a layer, computed without `features`."""
    name = "dropout" if number == 0 else f"encoderblock_{number - 1}"
    layer = model.get_layer(name)
    if getattr(layer, "first_token_only", False):
        # This block computes only the class token, so compute all tokens with a copy of it.
        tokens = keras.Model(model.input, layer.input)(images, training=False)
        block = keras_vit.TransformerBlock(layer.num_heads, layer.mlp_dim)
        block.build(tokens.shape)
        block.set_weights(layer.get_weights())
        tokens = block(tokens)
    else:
        tokens = keras.Model(model.input, layer.output)(images, training=False)
    return to_numpy(model.get_layer("encoder_norm")(tokens))


class Subclass(keras.Model):
    def __init__(self, vit):
        super().__init__()
        self.vit = vit
        self.head = keras.layers.Dense(2)

    def call(self, images, training=False):
        return self.head(self.vit(images / 2, training=training))


def sequential(vit):
    half = keras.layers.Rescaling(0.5)
    return keras.Sequential([keras.Input(vit.input_shape[1:]), half, vit, keras.layers.Dense(2)])


def wrapped_twice(vit):
    images = keras.Input(vit.input_shape[1:])
    half = keras.layers.Rescaling(0.5)(images)
    inner = keras.Model(images, keras.layers.Dense(2)(vit(half)))
    images = keras.Input(vit.input_shape[1:])
    return keras.Model(images, keras.layers.Softmax()(inner(images)))


@pytest.mark.parametrize(
    "kind",
    [
        "token",
        pytest.param("token without position", marks=pytest.mark.one_backend),
        pytest.param("gap", marks=pytest.mark.one_backend),
        pytest.param("hybrid", marks=pytest.mark.one_backend),
    ],
)
def test_features_of_layers_match_submodels(kind):
    model = build(**KINDS[kind])
    images = images_for(model)
    class_tokens = 0 if kind == "gap" else 1
    layers = [3, 0, 1, -1]
    all_tokens = keras_vit.features(model, images, layers, tokens="all")
    maps = keras_vit.features(model, images, layers, tokens="patch", grid=True)
    for number, tokens, grid in zip([3, 0, 1, 3], all_tokens, maps):
        expected = reference(model, number, images)
        np.testing.assert_allclose(tokens, expected, atol=2e-5)
        patches = expected[:, class_tokens:]
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
    """The wrapping models halve the pixel values."""
    vit = build()
    images = images_for(vit)
    before = to_numpy(vit(images))
    wrapped = wrap(vit)
    for options in ({"layers": [1, 3], "tokens": "all"}, {"layers": [2, 3], "tokens": "class"}):
        inner = keras_vit.features(vit, images / 2, **options)
        outer = keras_vit.features(wrapped, images, **options)
        np.testing.assert_allclose(outer, inner, atol=1e-6)
    # `features` does not change the model.
    np.testing.assert_array_equal(vit(images), before)


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


@pytest.mark.one_backend
def test_pooled_features_are_the_input_of_the_head():
    model = build(representation_size=7)
    images = images_for(model)
    pooled = keras_vit.features(model, images, tokens="pooled")
    np.testing.assert_allclose(model.get_layer("head")(pooled), model(images), atol=2e-5)
    # `pre_logits` applies only to the last layer.
    assert keras_vit.features(model, images, 1, tokens="pooled").shape == (2, 12)


def test_images_may_be_an_array_an_image_or_a_dataset():
    model = build()
    images = images_for(model, 5)
    expected = np.array(keras_vit.features(model, images, [1, 3]))
    batched = keras_vit.features(model, images, np.int64(1), batch_size=2)
    np.testing.assert_allclose(batched, expected[0], atol=1e-5)
    vectors = keras_vit.features(model, images[3], [1, 3])
    np.testing.assert_allclose(vectors, expected[:, 3], atol=1e-5)
    assert keras_vit.features(model, images[:0], [1, 2], tokens="patch")[1].shape == (0, 6, 12)
    singles = tf.data.Dataset.from_tensor_slices((images, np.arange(5)))
    for dataset in (singles, singles.map(lambda image, label: image).batch(3)):
        features = keras_vit.features(model, dataset, [1, 3], batch_size=4)
        np.testing.assert_allclose(features, expected, atol=1e-5)


@pytest.mark.one_backend
def test_layers_after_the_last_requested_are_skipped(monkeypatch):
    model = build()
    run_block = model.run_block
    numbers = []

    def recording_run_block(number, *args):
        numbers.append(number)
        return run_block(number, *args)

    monkeypatch.setattr(model, "run_block", recording_run_block)
    keras_vit.features(model, images_for(model), [1, 2], tokens="patch")
    assert set(numbers) == {1, 2}


@pytest.mark.full
def test_feature_model_trains_in_another_model(tmp_path):
    model = build()
    images = images_for(model)
    feature_model = keras_vit.FeatureModel(model, [2, 3], tokens="patch", grid=True)
    inputs = keras.Input(model.input_shape[1:])
    low, high = feature_model(inputs)
    whole = keras.Model(inputs, keras.layers.Conv2D(2, 1)(keras.layers.Concatenate()([low, high])))
    whole.compile("sgd", "mse", jit_compile=JIT)
    before = to_numpy(model.get_layer("embedding").kernel)
    whole.fit(images, np.ones((2, 3, 2, 2)), verbose=0)
    assert np.abs(before - to_numpy(model.get_layer("embedding").kernel)).max() > 0
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
def test_features_of_a_model_on_a_backbone():
    model = build()
    images = images_for(model)
    inner = keras_vit.backbone(model, layers=[1, 3], strides=[8, 8])
    pixels = keras.Input(model.input_shape[1:])
    outer = keras.Model(pixels, keras.layers.Conv2D(2, 1)(inner(pixels)[0]))
    np.testing.assert_array_equal(
        keras_vit.features(outer, images, 2), keras_vit.features(model, images, 2)
    )


@pytest.mark.one_backend
def test_features_of_a_masked_model_inside_a_feature_model():
    images = random_images((2, 8, 8, 3))
    sizes = {**SIZES, "num_layers": 2}
    model = keras_vit.MaskedPatchVisionTransformer(**sizes, input_shape=(8, 8, 3))
    outer = keras.Sequential([keras.Input((8, 8, 3)), keras_vit.FeatureModel(model)])
    np.testing.assert_array_equal(
        keras_vit.features(outer, images, 1), keras_vit.features(model, images, 1)
    )


@pytest.mark.one_backend
def test_features_are_thread_safe():
    model = build()
    images = images_for(model)
    expected_features = keras_vit.features(model, images, 2)
    expected_logits = to_numpy(model(images))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        features = [pool.submit(keras_vit.features, model, images, 2) for _ in range(10)]
        logits = [pool.submit(lambda: to_numpy(model(images))) for _ in range(20)]
    for future in features:
        np.testing.assert_array_equal(future.result(), expected_features)
    for future in logits:
        np.testing.assert_array_equal(future.result(), expected_logits)


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
