"""Tests of NaFlex models, whose outputs are compared with transformers and with models of a fixed
image size."""

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints, inspection, naflex
from keras_vit.layers import attention

from ...shared import assert_close, read_arrays, to_numpy
from .pictures import picture


def test_outputs_match_reference(model, batch, reference):
    expected = reference["last_hidden_state"] * reference["mask"][..., None]  # padding is zero
    assert_close(keras_vit.features(model, batch, tokens="patch"), expected)
    assert_close(keras_vit.features(model, batch, tokens="pooled"), reference["pooler_output"])
    assert_close(model(batch), reference["pooler_output"])


def test_larger_max_patches_gives_the_same_outputs(folder, reference):
    model = keras_vit.from_pretrained(folder, max_patches=40)
    padded = np.pad(reference["images"], ((0, 0), (0, 24), (0, 0)))
    batch = naflex.pack(padded, reference["spatial_shapes"])
    assert_close(model(batch), reference["pooler_output"])


@pytest.mark.parametrize("long_sequence", [1024, 4])
def test_padding_is_masked_and_stays_zero(long_sequence, monkeypatch):
    # JAX splits longer sequences into chunks.
    monkeypatch.setattr(attention, "LONG_SEQUENCE", long_sequence)
    monkeypatch.setattr(attention, "CHUNK", 4)
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
    path = tmp_path / "model.npz"
    checkpoints.save(model, path)
    arrays = {f"params/img/{name}": array for name, array in read_arrays(path).items()}
    kernel = "params/img/embedding/kernel"
    positions = "params/img/Transformer/posembed_input/pos_embedding"
    arrays[kernel] = arrays[kernel].reshape(-1, 24)
    arrays["params/img/pos_embedding"] = arrays.pop(positions).reshape(4, 4, 24)
    np.savez(path, **arrays)
    restored = keras_vit.from_pretrained(f"{path}:img", num_heads=3, max_patches=16)
    assert_close(restored(batch), model(batch))
    assert restored.preprocessing.resize == "naflex"


def test_patch_positions_above_256_are_exact_in_bfloat16(folder):
    model = keras_vit.from_pretrained(folder, max_patches=300, dtype="mixed_bfloat16")
    batch = keras_vit.preprocess_input([np.zeros((8, 2400, 3), "uint8")], model)
    _, positions = model.get_layer("patches")(model.input_preprocessing(batch))
    np.testing.assert_array_equal(to_numpy(positions)[0, :, 1], np.arange(1, 301))


def test_fixed_size_model_loads_naflex_weights(model, fixed_model):
    images = np.stack([picture(i, 32, 32) for i in range(2)])
    batch = keras_vit.preprocess_input(list(images), model)
    assert_close(model(batch), fixed_model(keras_vit.preprocess_input(images, fixed_model)))


def test_naflex_model_rejects_images_of_one_size(model):
    images = np.zeros((2, 32, 32, 3), "float32")
    with pytest.raises(ValueError, match="of 16 patches takes"):
        keras_vit.features(model, images, tokens="pooled")


def test_fixed_size_model_rejects_naflex_inputs(fixed_model, batch):
    with pytest.raises(ValueError, match="must have shape .B, 32, 32, 3"):
        keras_vit.features(fixed_model, batch, tokens="pooled")
    with pytest.raises(ValueError, match="takes images of one size"):
        keras_vit.preprocess_input([picture(0, 8, 9), picture(0, 9, 8)], fixed_model)


@pytest.mark.parametrize(
    "images",
    [["a.jpg"], [], [np.zeros((8, 9, 1))], [np.zeros((0, 8, 3))]],
    ids=["path", "none", "gray", "empty"],
)
def test_preprocessing_requires_a_list_of_images(images, model):
    with pytest.raises(ValueError, match="one or more images"):
        keras_vit.preprocess_input(images, model)


def test_rejects_image_without_patches(model, batch):
    with pytest.raises(ValueError, match="image of the batch has no patches"):
        model(0 * batch)


def test_preprocessing_rejects_normalized_images(model):
    with pytest.raises(ValueError, match="must have pixel values"):
        keras_vit.preprocess_input([np.full((8, 9, 3), -1.0)], model)


@pytest.mark.parametrize("arguments", [{"classifier": "gap"}, {"stem": "resnet"}])
def test_rejects_unsupported_arguments(arguments, model):
    arguments = {**model.arguments, "input_shape": (64, 64, 3), **arguments}
    with pytest.raises(ValueError, match="A NaFlex model requires"):
        keras_vit.NaFlexVisionTransformer(**arguments)


def test_features_have_no_common_grid(model, batch):
    with pytest.raises(ValueError, match="has its own patch grid"):
        keras_vit.features(model, batch, tokens="patch", grid=True)


@pytest.mark.parametrize("method", ["rollout", "mean", "relevance"])
def test_attention_maps_match_the_fixed_size_model(method, model, fixed_model):
    square = picture(0, 32, 32)
    images = keras_vit.preprocess_input(square[None], fixed_model)
    (expected,) = inspection.attention_maps(fixed_model, images, method=method)
    batch = keras_vit.preprocess_input([square, picture(1, 16, 64)], model)
    maps = inspection.attention_maps(model, batch, method=method)
    # Maps are padded with zeros to the height of the highest and the width of the widest picture.
    (alone,) = inspection.attention_maps(model, batch[1:], method=method)
    padded = np.pad(expected, ((0, 0), (0, 32))), np.pad(alone, ((0, 16), (0, 0)))
    assert_close(maps, np.stack(padded), 1e-4)
