"""Tests of text towers and of models with an image and a text tower."""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import SIZES, assert_same_weights, random_images, to_numpy

TEXT = {
    "vocabulary_size": 20,
    "length": 6,
    "num_layers": 2,
    "hidden_size": 8,
    "mlp_dim": 12,
    "num_heads": 2,
    "embedding_size": 16,
}
IMAGE = {
    **SIZES,
    "patch_size": 8,
    "hidden_size": 16,
    "classifier": "map",
    "include_top": False,
    "input_shape": (16, 24, 3),
}


def towers(**options):
    keras.utils.set_random_seed(0)
    text = keras_vit.TextTransformer(**TEXT, **options.pop("text", {}))
    return keras_vit.TwoTowers(keras_vit.VisionTransformer(**IMAGE), text, **options)


def examples(images=3, texts=4):
    ids = np.random.default_rng(0).integers(0, 20, (texts, TEXT["length"]))
    return random_images((images, *IMAGE["input_shape"])), ids.astype("int32")


@pytest.mark.parametrize("causal", [True, False])
def test_causal_tokens_depend_on_earlier_tokens_only(causal):
    model = keras_vit.TextTransformer(**TEXT, causal=causal)
    _, ids = examples(texts=1)
    changed = ids.copy()
    changed[0, 3] = (ids[0, 3] + 1) % 20
    difference = to_numpy(model.encode(ids)) - to_numpy(model.encode(changed))
    is_changed = np.abs(difference).max(-1)[0] > 1e-6
    assert is_changed.tolist() == [not causal] * 3 + [True] * 3


@pytest.mark.parametrize(
    ("options", "ids", "position"),
    [
        ({"pool": "last"}, [7, 9, 9, 3, 19, 1], 5),
        ({"pool": "largest"}, [7, 9, 18, 3, 18, 18], 2),
        ({"pool": "end", "end_id": 9}, [7, 9, 19, 9, 9, 9], 1),
        ({"pool": "end", "end_id": 0}, [7, 9, 19, 9, 9, 9], 0),
    ],
)
def test_pooling_takes_one_token(options, ids, position):
    model = keras_vit.TextTransformer(**TEXT, **options)
    tokens = np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32")
    pooled = to_numpy(model.pool(tokens, keras.ops.convert_to_tensor([ids], "int32")))
    np.testing.assert_array_equal(pooled, tokens[:, position])


@pytest.mark.parametrize("bias", [None, -3.0])
def test_logits_are_scaled_cosines(bias):
    model = towers(scale=5.0, bias=bias)
    images, ids = examples()
    embedded = [to_numpy(model.encode_image(images)), to_numpy(model.encode_text(ids))]
    for embeddings in embedded:
        np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)
        assert embeddings.dtype == np.float32
    expected = 5 * embedded[0] @ embedded[1].T + (bias or 0)
    np.testing.assert_allclose(to_numpy(model([images, ids])), expected, atol=1e-5)
    assert (model.logit_bias is None) == (bias is None)
    names = [variable.name for variable in model.similarity.trainable_variables]
    assert names == ["logit_scale", "logit_bias"][: 1 if bias is None else 2]


def test_saving_keeps_every_weight(tmp_path):
    model = towers(bias=-1.0, text={"causal": True, "pool": "largest", "mlp": "quick_gelu"})
    model.logit_scale.assign(0.7)
    model.image.trainable = False
    model.save(tmp_path / "towers.keras")
    again = keras_vit.models.load_keras_file(tmp_path / "towers.keras")
    assert_same_weights(again, model)
    np.testing.assert_array_equal(to_numpy(model(examples())), to_numpy(again(examples())))
    assert len(again.trainable_variables) == len(model.trainable_variables)
    assert dict(again.text.arguments) == dict(model.text.arguments)


@pytest.mark.one_backend
def test_saving_keeps_frozen_parts_of_the_text_tower(tmp_path):
    model = towers()
    model.text.blocks[0].trainable = False
    model.text.blocks[1].attention.trainable = False
    model.save(tmp_path / "towers.keras")
    again = keras_vit.models.load_keras_file(tmp_path / "towers.keras")
    paths = [variable.path for variable in model.text.trainable_variables]
    assert [variable.path for variable in again.text.trainable_variables] == paths
    assert len(paths) == len(model.text.weights) - 16 - 8


@pytest.mark.one_backend
def test_mixed_precision_returns_float32_embeddings():
    model = towers(text={"dtype": "mixed_bfloat16"})
    exact = towers()
    _, ids = examples()
    np.testing.assert_allclose(
        to_numpy(model.encode_text(ids)), to_numpy(exact.encode_text(ids)), atol=0.02
    )
    assert model.text.blocks[0].compute_dtype == "bfloat16"


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": "first"}, "`pool` must be one of"),
        ({"pool": "end", "end_id": 20}, "requires `end_id`"),
        ({"mlp": "swiglu"}, "`mlp` must be one of"),
        ({"length": 0}, "`length` must be an integer"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.TextTransformer(**{**TEXT, **change})


@pytest.mark.one_backend
def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="`TextTransformer` takes no argument `width`.*width=3"):
        keras_vit.TextTransformer(**TEXT, width=3)
    with pytest.raises(TypeError, match="`TwoTowers` takes no argument `width`.*width=3"):
        towers(width=3)


@pytest.mark.one_backend
def test_towers_of_different_widths_are_refused():
    text = keras_vit.TextTransformer(**{**TEXT, "embedding_size": 12})
    with pytest.raises(ValueError, match="the same size E"):
        keras_vit.TwoTowers(keras_vit.VisionTransformer(**IMAGE), text)
    with pytest.raises(ValueError, match="`scale` must be above 0"):
        towers(scale=0)
