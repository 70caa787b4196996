"""Tests of NaFlex models, whose outputs are compared with transformers and with models of a fixed
image size."""

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints, inspection, naflex
from keras_vit.layers import attention

from ...shared import assert_close, to_numpy
from .pictures import picture


def test_outputs_match_reference(model, batch, reference):
    expected = reference["last_hidden_state"] * reference["mask"][..., None]  # padding is zero
    assert_close(model.intermediates(batch)["encoded"], expected)
    assert_close(keras_vit.features(model, batch, tokens="patch"), expected)
    assert_close(model(batch), reference["pooler_output"])
    assert_close(keras_vit.features(model, batch, tokens="pooled"), reference["pooler_output"])


def test_larger_max_patches_gives_the_same_outputs(folder, reference):
    model = keras_vit.from_pretrained(folder, max_patches=40)
    padded = np.pad(reference["images"], ((0, 0), (0, 24), (0, 0)))
    batch = naflex.pack(padded, reference["spatial_shapes"])
    assert_close(model(batch), reference["pooler_output"])


@pytest.mark.parametrize("long_sequence", [1024, 4])
def test_padding_is_masked_and_stays_zero(long_sequence, monkeypatch):
    # JAX splits longer sequences into chunks.
    monkeypatch.setattr(attention, "LONG_SEQUENCE", long_sequence)
    tokens = np.random.default_rng(0).normal(size=(2, 7, 8)).astype("float32")
    padded = np.pad(tokens, ((0, 0), (0, 3), (0, 0)))
    block = keras_vit.TransformerBlock(2, 12, masked=True)
    result = to_numpy(block(padded))
    assert not result[:, 7:].any()
    assert_close(result[:, :7], block(tokens))
    pooling = keras_vit.AttentionPooling(2, 12, masked=True)
    assert_close(pooling(padded), pooling(tokens))


@pytest.mark.parametrize("file", ["model.keras", "model.npz"])
def test_model_is_restored_from_a_file(file, model, batch, tmp_path):
    path = tmp_path / file
    if path.suffix == ".keras":
        model.save(path)
        restored = keras_vit.load_keras_file(path)
    else:
        checkpoints.save(model, path)
        restored = keras_vit.from_pretrained(path)
    assert restored.preprocessing.resize == "naflex"
    np.testing.assert_array_equal(restored(batch), model(batch))


def test_model_cannot_be_written_for_transformers(model, tmp_path):
    with pytest.raises(ValueError, match="no class of the library"):
        checkpoints.save(model, tmp_path / "folder", format="huggingface")


@pytest.mark.one_backend
def test_loads_big_vision_files(model, batch, tmp_path):
    checkpoints.save(model, tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as file:
        arrays = {f"params/img/{name}": array for name, array in file.items()}
    kernel = "params/img/embedding/kernel"
    positions = "params/img/Transformer/posembed_input/pos_embedding"
    arrays[kernel] = arrays[kernel].reshape(-1, 24)
    arrays["params/img/pos_embedding"] = arrays.pop(positions).reshape(4, 4, 24)
    np.savez(tmp_path / "naflex.npz", **arrays)
    restored = keras_vit.from_pretrained(f"{tmp_path}/naflex.npz:img", num_heads=3, max_patches=16)
    assert_close(restored(batch), model(batch))
    assert restored.preprocessing.resize == "naflex"


def test_patch_positions_above_256_are_exact_in_bfloat16(folder):
    model = keras_vit.from_pretrained(folder, max_patches=300, dtype="mixed_bfloat16")
    batch = keras_vit.preprocess_input([np.zeros((8, 2400, 3), "uint8")], model)
    _, positions = model.get_layer("patches")(model.input_preprocessing(batch))
    columns = to_numpy(positions)[0, :, 1]
    np.testing.assert_array_equal(columns, np.arange(1, 301))
    assert np.isfinite(to_numpy(model(batch))).all()


def test_fixed_size_model_loads_naflex_weights(model, fixed_model):
    assert fixed_model.input_shape == (None, 32, 32, 3)
    assert fixed_model.preprocessing.resize == "stretch"
    images = np.stack([picture(i, 32, 32) for i in range(2)])
    batch = keras_vit.preprocess_input(list(images), model)
    assert_close(model(batch), fixed_model(keras_vit.preprocess_input(images, fixed_model)))


def test_naflex_model_rejects_images_of_one_size(model):
    images = np.zeros((2, 32, 32, 3), "float32")
    message = "of 16 patches takes .*preprocess_input"
    with pytest.raises(ValueError, match=message):
        model(images)
    with pytest.raises(ValueError, match=message):
        keras_vit.features(model, images, tokens="pooled")


def test_fixed_size_model_rejects_a_naflex_batch(fixed_model, batch):
    with pytest.raises(ValueError, match="incompatible"):
        fixed_model(batch)
    with pytest.raises(ValueError, match="must have shape .B, 32, 32, 3"):
        keras_vit.features(fixed_model, batch, tokens="pooled")


def test_fixed_size_model_rejects_images_of_several_sizes(fixed_model):
    with pytest.raises(ValueError, match="takes images of one size. Received: shapes="):
        keras_vit.preprocess_input([picture(0, 8, 9), picture(0, 9, 8)], fixed_model)


def test_preprocessing_rejects_values_outside_the_range(model):
    with pytest.raises(ValueError, match="must have pixel values.* Received: "):
        keras_vit.preprocess_input([np.full((8, 9, 3), -1.0)], model)


@pytest.mark.parametrize(
    "images", [["a.jpg"], np.zeros((8, 9, 3), "uint8"), []], ids=["path", "one image", "none"]
)
def test_preprocessing_requires_a_list_of_images(images, model):
    with pytest.raises(ValueError, match="one or more images .*: images of shapes"):
        keras_vit.preprocess_input(images, model)


def test_rejects_image_without_patches(model, batch):
    with pytest.raises(ValueError, match="image of the batch has no patches"):
        model(0 * batch)


def test_requires_attention_pooling(folder):
    with pytest.raises(ValueError, match="classifier=.map.* Received: classifier='gap'"):
        keras_vit.from_pretrained(folder, classifier="gap")


def test_features_have_no_common_grid(model, batch):
    with pytest.raises(ValueError, match="has its own patch grid.* Received: model="):
        keras_vit.features(model, batch, tokens="patch", grid=True)


METHODS = ["rollout", "mean", "relevance"]


@pytest.fixture(scope="module")
def three_shapes():
    """Returns a square picture, a wide one and a tall one."""
    return [picture(i, *size) for i, size in enumerate([(32, 32), (16, 64), (96, 8)])]


@pytest.mark.parametrize("method", METHODS)
def test_attention_maps_do_not_depend_on_the_batch(method, model, three_shapes):
    batch = keras_vit.preprocess_input(three_shapes, model)
    maps = inspection.attention_maps(model, batch, method=method, upsample=False)
    assert maps.shape == (3, 12, 8)
    for i, (rows, columns) in enumerate([(4, 4), (2, 8), (12, 1)]):
        alone = inspection.attention_maps(model, batch[i : i + 1], method=method, upsample=False)
        np.testing.assert_allclose(maps[i, :rows, :columns], alone[0], rtol=1e-4, atol=1e-6)
        assert maps[i].sum() == pytest.approx(alone.sum(), rel=1e-4)  # zero elsewhere


@pytest.mark.parametrize("method", METHODS)
def test_attention_maps_match_the_fixed_size_model(method, model, fixed_model, three_shapes):
    images = keras_vit.preprocess_input(np.stack(three_shapes[:1]), fixed_model)
    (expected,) = inspection.attention_maps(fixed_model, images, method=method)
    batch = keras_vit.preprocess_input(three_shapes, model)
    maps = inspection.attention_maps(model, batch, method=method)
    np.testing.assert_allclose(maps[0, :32, :32], expected, rtol=1e-3, atol=1e-5)
    # The maps have the size of the tallest and the widest picture, and are padded with zeros.
    assert maps.shape == (3, 96, 64)
    assert not maps[0, 32:].any()
    assert not maps[2, :, 8:].any()


def normalize(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_zero_shot_accepts_any_aspect_ratio(model, pictures, tmp_path):
    embeddings = np.random.default_rng(0).normal(size=(3, 24)).astype("float32")
    classes = {"names": list("abc"), "embeddings": embeddings, "scale": 10.0, "bias": -5.0}
    np.savez(tmp_path / "classes.npz", **classes)
    classifier = keras_vit.zero_shot(model, tmp_path / "classes.npz")
    batch = keras_vit.preprocess_input(pictures[5:8], classifier)
    pooled = keras_vit.features(model, batch, tokens="pooled")
    assert_close(classifier(batch), 10 * normalize(pooled) @ normalize(embeddings).T - 5)


def test_zero_shot_rejects_text_embeddings_of_other_width(model, tmp_path):
    np.savez(tmp_path / "wide.npz", names=list("abc"), embeddings=np.ones((3, 25)), scale=10.0)
    with pytest.raises(ValueError, match="as wide as the text embeddings"):
        keras_vit.zero_shot(model, tmp_path / "wide.npz")
