"""Tests of `features`, `FeatureModel` and `intermediates`."""

import concurrent.futures

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_vit

from ..shared import SIZES, THREE_LAYERS, images_for, random_images, randomize

# With jit_compile=False, JAX compiles each operation separately.
JIT = keras.backend.backend() == "jax"
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
    block = model.get_layer(name)
    if getattr(block, "first_token_only", False):
        whole = keras_vit.TransformerBlock(block.num_heads, block.mlp_dim)
        tokens = keras.Model(model.input, block.input)(images, training=False)
        whole.build(tokens.shape)
        whole.set_weights(block.get_weights())
        tokens = whole(tokens)
    else:
        tokens = keras.Model(model.input, block.output)(images, training=False)
    return ops.convert_to_numpy(model.get_layer("encoder_norm")(tokens))


class Subclass(keras.Model):
    def __init__(self, vit):
        super().__init__()
        self.vit = vit
        self.head = keras.layers.Dense(2)

    def call(self, images, training=False):
        return self.head(self.vit(images / 2, training=training))


def wrap(vit, wrapper):
    """Returns a model that halves the pixel values and applies a Vision Transformer to them."""
    if wrapper == "subclass":
        return Subclass(vit)
    half = keras.layers.Rescaling(0.5)
    if wrapper == "sequential":
        return keras.Sequential(
            [keras.Input(vit.input_shape[1:]), half, vit, keras.layers.Dense(2)]
        )
    images = keras.Input(vit.input_shape[1:])
    inner = keras.Model(images, keras.layers.Dense(2)(vit(half(images))))
    images = keras.Input(vit.input_shape[1:])
    return keras.Model(images, keras.layers.Softmax()(inner(images)))


@pytest.mark.parametrize(
    "kind",
    ["token", *(pytest.param(kind, marks=pytest.mark.one_backend) for kind in list(KINDS)[1:])],
)
def test_features_of_layers_match_submodels(kind):
    model = build(**KINDS[kind])
    images = images_for(model)
    prefix = int(kind != "gap")
    layers = [3, 0, 1, -1]
    all_tokens = keras_vit.features(model, images, layers, tokens="all")
    maps = keras_vit.features(model, images, layers, tokens="patch", grid=True)
    for number, tokens, grid in zip([3, 0, 1, 3], all_tokens, maps):
        expected = reference(model, number, images)
        assert tokens.shape[1] == 6 + prefix
        np.testing.assert_allclose(tokens, expected, atol=2e-5)
        np.testing.assert_allclose(grid, expected[:, prefix:].reshape(2, 3, 2, 12), atol=2e-5)
    if prefix:
        token = keras_vit.features(model, images)
        np.testing.assert_allclose(token, reference(model, 3, images)[:, 0], atol=2e-5)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "options", [{"representation_size": 7}, {"classifier": "gap"}, {"classifier": "map"}], ids=str
)
def test_pooled_features_are_the_input_of_the_head(options):
    model = build(**options)
    images = images_for(model)
    pooled = keras_vit.features(model, images, tokens="pooled")
    np.testing.assert_allclose(model.get_layer("head")(pooled), model(images), atol=2e-5)
    middle = keras_vit.features(model, images, 1, tokens="pooled")
    assert middle.shape == (2, 12)  # `pre_logits` applies only to the last layer


@pytest.mark.parametrize(
    "wrapper",
    [
        "twice",
        *(
            pytest.param(wrapper, marks=pytest.mark.one_backend)
            for wrapper in ("sequential", "subclass")
        ),
    ],
)
def test_features_apply_layers_before_the_transformer(wrapper):
    vit = build()
    images = images_for(vit)
    wrapped = wrap(vit, wrapper)
    for options in ({"layers": [1, 3], "tokens": "all"}, {"layers": [2, 3], "tokens": "class"}):
        inner = keras_vit.features(vit, images / 2, **options)
        outer = keras_vit.features(wrapped, images, **options)
        np.testing.assert_allclose(outer, inner, atol=1e-6)
    before = ops.convert_to_numpy(vit(images))
    np.testing.assert_array_equal(before, vit(images))  # `features` does not change the model


@pytest.mark.one_backend
def test_mixed_precision_features_are_close_to_float32():
    exact = build()
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = build()
    images = images_for(model)
    ours, theirs = (keras_vit.features(m, images, [1, 3], tokens="all") for m in (model, exact))
    for mixed, full in zip(ours, theirs):
        assert mixed.dtype == np.float32
        assert np.abs(mixed - full).max() < 0.1 * np.abs(full).max()


@pytest.mark.one_backend
def test_batches_are_concatenated_in_order():
    model = build()
    images = images_for(model, 5)
    np.testing.assert_allclose(
        keras_vit.features(model, images, batch_size=2),
        keras_vit.features(model, images),
        atol=1e-5,
    )
    assert keras_vit.features(model, images[:0], [1, 2], tokens="patch")[1].shape == (0, 6, 12)


def test_features_of_one_image_and_of_datasets():
    model = build()
    images = images_for(model, 5)
    expected = keras_vit.features(model, images, [1, 3])
    one = keras_vit.features(model, images[3], [1, 3])
    assert [vector.shape for vector in one] == [(12,), (12,)]
    np.testing.assert_allclose(one[1], expected[1][3], atol=1e-5)
    singles = tf.data.Dataset.from_tensor_slices((images, np.arange(5)))
    for dataset in (singles, singles.batch(2), singles.map(lambda image, label: image).batch(3)):
        found = keras_vit.features(model, dataset, [1, 3], batch_size=4)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="empty dataset"):
        keras_vit.features(model, singles.take(0))
    with pytest.raises(ValueError, match="of shape"):
        keras_vit.features(model, singles.map(lambda image, label: (image[:8], label)))


@pytest.mark.one_backend
def test_layers_after_the_last_requested_are_skipped():
    model = build()
    model.get_layer("encoderblock_2").mlp_1.kernel.assign(np.nan * np.ones((12, 20)))
    model.get_layer("head").kernel.assign(np.nan * np.ones((12, 4)))
    calls = []
    for block in model.blocks:
        call = block.call
        block.call = lambda *a, call=call, block=block, **k: (
            calls.append(block.name),
            call(*a, **k),
        )[1]
    keras_vit.features(model, images_for(model), [1, 2], tokens="patch")
    assert "encoderblock_2" not in calls


@pytest.mark.full
def test_feature_model_trains_saves_and_loads(tmp_path):
    model = build()
    images = images_for(model)
    extractor = keras_vit.FeatureModel(model, [2, 3], tokens="patch", grid=True)
    inputs = keras.Input(model.input_shape[1:])
    low, high = extractor(inputs)
    head = keras.layers.Conv2D(2, 1)(keras.layers.Concatenate()([low, high]))
    whole = keras.Model(inputs, head)
    assert head.shape == (None, 3, 2, 2)
    whole.compile("sgd", "mse", jit_compile=JIT)
    before = np.array(model.get_layer("embedding").kernel)
    whole.fit(images, np.ones((2, 3, 2, 2)), verbose=0)
    assert np.abs(before - np.array(model.get_layer("embedding").kernel)).max() > 0
    whole.save(tmp_path / "whole.keras")
    loaded = keras.models.load_model(tmp_path / "whole.keras")
    np.testing.assert_allclose(loaded(images), whole(images), atol=1e-6)
    extractor.save(tmp_path / "features.keras")
    loaded = keras.models.load_model(tmp_path / "features.keras")
    for ours, theirs in zip(
        loaded(images), keras_vit.features(model, images, [2, 3], "patch", grid=True)
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.one_backend
def test_rejects_bad_input():
    model = build()
    gap = build(classifier="gap")
    images = images_for(model)
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    for match, call in (
        ("has no Vision Transformer", lambda: keras_vit.features(dense, images)),
        (
            "has more than one Vision Transformer",
            lambda: keras_vit.features(_two(model, build(name="other")), images),
        ),
        (r"are 0 to 3.*Received: layer=4", lambda: keras_vit.features(model, images, [1, 4])),
        (r"Received: layer=-5", lambda: keras_vit.features(model, images, -5)),
        (r"Received: layer=1.0", lambda: keras_vit.features(model, images, [1.0])),
        (r"Received: layers=\[\]", lambda: keras_vit.features(model, images, [])),
        (
            r"\(B, 24, 16, 3\).*of shape \(2, 16, 16, 3\)",
            lambda: keras_vit.features(model, images[:, :16]),
        ),
        ("of shape \\(16, 3\\)", lambda: keras_vit.features(model, images[0, 0])),
        ("of shape \\(1, 16, 16, 3\\)", lambda: keras_vit.features(model, images[0, :16])),
        ("dtype=uint8", lambda: keras_vit.features(model, np.zeros((1, 24, 16, 3), "uint8"))),
        ("has no class token.*Received: tokens='class'", lambda: keras_vit.features(gap, images)),
        ("one of class, registers, patch", lambda: keras_vit.features(model, images, tokens="cls")),
        ("`tokens` must be 'patch'", lambda: keras_vit.features(model, images, grid=True)),
        ("norm=False", lambda: keras_vit.features(model, images, tokens="pooled", norm=False)),
        (
            "does not pool its tokens",
            lambda: keras_vit.features(build(classifier="unpooled"), images, tokens="pooled"),
        ),
        (
            "does not pool its tokens",
            lambda: keras_vit.features(build(classifier="token_unpooled"), images, tokens="pooled"),
        ),
        ("are 0 to .* layer=1.5", lambda: keras_vit.features(build(), images, layers=1.5)),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def test_hybrid_patch_stride_is_the_stem_stride():
    """The stride does not divide the image size, so the last patches extend beyond the image."""
    model = build(input_shape=(36, 20, 3), patch_size=1, resnet_blocks=(1, 1))
    assert model.grid == (5, 3) and model.patch_stride == 8


@pytest.mark.one_backend
def test_accepts_numpy_integers():
    model = build()
    one = np.int64(1)
    representations = keras_vit.features(model, images_for(model), one, batch_size=one)
    np.testing.assert_array_equal(
        representations, keras_vit.features(model, images_for(model), 1, batch_size=1)
    )
    assert keras_vit.freeze(model, up_to=one) == keras_vit.freeze(build(), up_to=1)


def _two(first, second):
    images = keras.Input(first.input_shape[1:])
    return keras.Model(images, [first(images), second(images)])


@pytest.mark.one_backend
def test_rejects_clones_and_submodels():
    model = build()
    for other in (
        keras.models.clone_model(model),
        keras.Model(model.inputs, model.get_layer("encoderblock_1").output),
    ):
        with pytest.raises(
            ValueError, match="no Vision Transformer, only the layers of one, as in a clone"
        ):
            keras_vit.features(other, images_for(model))
    siamese = keras.Sequential([keras.Input((24, 16, 3)), model])
    pixels = keras.Input((24, 16, 3))
    twice = keras.Model(pixels, model(pixels) + siamese(pixels))
    with pytest.raises(
        ValueError, match="must call its Vision Transformer once. Received: 2 calls"
    ):
        keras_vit.features(twice, images_for(model))


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
    expected = [keras_vit.features(model, images, 2), np.array(model(images))]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        work = [pool.submit(keras_vit.features, model, images, 2) for _ in range(10)]
        plain = [pool.submit(lambda: np.array(model(images))) for _ in range(20)]
        for results, one in ((work, expected[0]), (plain, expected[1])):
            for result in results:
                np.testing.assert_array_equal(result.result(), one)


@pytest.mark.parametrize("kind", ["token", "gap"])
def test_intermediates_match_features_and_logits(kind):
    model = build(**KINDS[kind], representation_size=7)
    images = images_for(model)
    prefix = int(kind == "token")
    result = model.intermediates(images, attention=True)
    assert [tuple(scores.shape) for scores in result["attention"]] == 3 * [
        (2, 3, 6 + prefix, 6 + prefix)
    ]
    np.testing.assert_allclose(np.sum(result["attention"], -1), 1, atol=1e-5)
    for number, tokens in enumerate(result["tokens"]):
        np.testing.assert_allclose(model.norm(tokens), reference(model, number, images), atol=2e-5)
    np.testing.assert_array_equal(model.norm(result["tokens"][3]), result["encoded"])
    np.testing.assert_allclose(model.head(result["pre_logits"]), model(images), atol=2e-5)
    assert "attention" not in model.intermediates(images)
