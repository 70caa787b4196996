"""Tests of text towers and of models with an image and a text tower.

The outputs of both towers are compared with other libraries in `families/two_towers_test.py`.
"""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import to_numpy

TOWER_SIZES = {"num_layers": 2, "hidden_size": 8, "mlp_dim": 12, "num_heads": 2}
TEXT = {**TOWER_SIZES, "vocabulary_size": 20, "length": 6, "embedding_size": 8}
IMAGE = {
    **TOWER_SIZES,
    "patch_size": 8,
    "classifier": "map",
    "include_top": False,
    "input_shape": (16, 24, 3),
}


def towers(**options):
    keras.utils.set_random_seed(0)
    text = keras_vit.TextTransformer(**TEXT, **options.pop("text", {}))
    return keras_vit.TwoTowers(keras_vit.VisionTransformer(**IMAGE), text, **options)


@pytest.mark.parametrize(
    ("options", "ids", "position"),
    [
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


def test_saving_keeps_frozen_parts(tmp_path):
    model = towers(bias=-1.0)
    model.image.trainable = False
    model.logit_bias.trainable = False
    model.text.blocks[0].trainable = False
    model.text.blocks[1].attention.trainable = False
    model.save(tmp_path / "towers.keras")
    again = keras_vit.models.load_keras_file(tmp_path / "towers.keras")
    trainable, expected = (
        [variable.path for variable in towers.trainable_variables] for towers in (again, model)
    )
    assert trainable == expected


@pytest.mark.one_backend
def test_mixed_precision_returns_float32_embeddings():
    model = towers(text={"dtype": "mixed_bfloat16"})
    ids = np.random.default_rng(0).integers(0, TEXT["vocabulary_size"], (4, TEXT["length"]))
    embeddings = model.encode_text(ids)
    assert model.text.blocks[0].compute_dtype == "bfloat16"
    assert keras.backend.standardize_dtype(embeddings.dtype) == "float32"
    np.testing.assert_allclose(embeddings, towers().encode_text(ids), atol=0.05)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": "first"}, "`pool` must be one of"),
        ({"pool": "end", "end_id": 20}, "requires `end_id`"),
        ({"pool": "largest", "end_id": 3}, "other pooling does not use it"),
        ({"mlp": "swiglu"}, "`mlp` must be one of"),
        ({"length": 0}, "`length` must be an integer"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.TextTransformer(**{**TEXT, **change})


@pytest.mark.one_backend
def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="`TextTransformer` takes no argument `width`"):
        keras_vit.TextTransformer(**TEXT, width=3)
    with pytest.raises(TypeError, match="`TwoTowers` takes no argument `width`"):
        towers(width=3)


@pytest.mark.one_backend
def test_towers_of_different_widths_are_refused():
    text = keras_vit.TextTransformer(**{**TEXT, "embedding_size": 12})
    with pytest.raises(ValueError, match="the same size E"):
        keras_vit.TwoTowers(keras_vit.VisionTransformer(**IMAGE), text)
    with pytest.raises(ValueError, match="`scale` must be above 0"):
        towers(scale=0)


@pytest.mark.one_backend
def test_image_tower_may_have_a_static_batch_size():
    images = keras.Input(batch_shape=(2, *IMAGE["input_shape"]))
    image = keras.Model(images, keras_vit.VisionTransformer(**IMAGE)(images))
    text = keras_vit.TextTransformer(**TEXT)
    assert keras_vit.TwoTowers(image, text).output_shape == (None, None)
