"""Tests of both towers of CLIP and SigLIP against transformers, open_clip and big_vision."""

import os
import shutil
from unittest import mock

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import checkpoints, families, files, naflex

from ..shared import GOLDEN, assert_close, assert_same_arrays, read_arrays, to_numpy

GOLDEN_FILES = GOLDEN / "text"
TRANSFORMERS = ("clip_text", "clip_text_gelu", "siglip_text")
CASES = (
    *TRANSFORMERS,
    "siglip2_text",
    "siglip_two_towers",
    "siglip_two_towers_scanned",
    "open_clip",
    "open_clip_custom",
)


@pytest.fixture
def write(tmp_path):
    """Returns a function that copies the weights and config of a case to a folder, and returns the
    folder.

    For a case of big_vision, the function returns the path of its .npz file.
    """

    def copy(case):
        if (GOLDEN_FILES / f"{case}.npz").exists():
            return GOLDEN_FILES / f"{case}.npz"
        folder = tmp_path / "model"
        folder.mkdir()
        prefix = "open_clip_" if case.startswith("open_clip") else ""
        shutil.copy(GOLDEN_FILES / f"{case}.safetensors", folder / f"{prefix}model.safetensors")
        shutil.copy(GOLDEN_FILES / f"{case}.config.json", folder / f"{prefix}config.json")
        return folder

    return copy


def read_reference(case):
    """Returns images, token ids and the outputs of the reference implementation."""
    arrays = read_arrays(GOLDEN_FILES / f"{case}.io.npz")
    images = arrays.get("images")
    if images is None:
        images = naflex.pack(arrays["pixels"], arrays["spatial_shapes"], arrays["mask"])
    return np.asarray(images), arrays["input_ids"].astype("int32"), arrays


def normalize(embeddings):
    return embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)


def assert_matches_reference(model, case):
    images, ids, expected = read_reference(case)
    assert_close(model.encode_image(images), normalize(expected["image_embeds"]))
    assert_close(model.encode_text(ids), normalize(expected["text_embeds"]))
    logits = model([images, ids])
    assert_close(logits, expected["logits_per_image"])
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"


@pytest.mark.parametrize("case", CASES)
def test_towers_match_the_library(case, write):
    source = write(case)
    both = keras_vit.from_pretrained(source, tower="both")
    assert_matches_reference(both, case)

    images, ids, expected = read_reference(case)
    image_tower = keras_vit.from_pretrained(source)
    np.testing.assert_array_equal(to_numpy(image_tower(images)), to_numpy(both.image(images)))
    text_tower = keras_vit.from_pretrained(source, tower="text")
    assert_close(text_tower(ids), both.text(ids))
    if case in TRANSFORMERS:
        # Compare only the tokens before the padding, which transformers masks in CLIP.
        is_text = expected.get("attention_mask", np.ones_like(ids)).astype(bool)
        tokens = to_numpy(text_tower.encode(ids))[is_text]
        assert_close(tokens, expected["text_last_hidden_state"][is_text])


@pytest.mark.one_backend
def test_keras_file_restores_both_towers(write, tmp_path):
    model = keras_vit.from_pretrained(write("siglip2_text"), tower="both")
    model.save(tmp_path / "towers.keras")
    restored = keras_vit.models.load_keras_file(tmp_path / "towers.keras")
    assert_matches_reference(restored, "siglip2_text")


def without_training_fields(config):
    """Drops the fields of a tower's config that do not affect a model's outputs."""
    dropped = ("dropout", "token_id", "initializer", "use_head", "architectures", "dtype")
    return {
        field: value
        for field, value in config.items()
        if not any(part in field for part in dropped)
    }


@pytest.mark.one_backend
@pytest.mark.parametrize("case", TRANSFORMERS)
def test_written_folder_equals_that_of_transformers(case, write, tmp_path):
    source = write(case)
    written = tmp_path / "written"
    model = keras_vit.from_pretrained(source, tower="both")
    checkpoints.save(model, written, format="huggingface")
    assert_same_arrays(*(load_file(path / "model.safetensors") for path in (written, source)))

    config, expected = (files.read_json(path / "config.json") for path in (written, source))
    for field in ("architectures", "model_type"):
        assert config[field] == expected[field]
    for tower in ("text_config", "vision_config"):
        assert config[tower].items() >= without_training_fields(expected[tower]).items()
    restored = keras_vit.from_pretrained(written, tower="both")
    assert_matches_reference(restored, case)
    assert restored.preprocessing == model.preprocessing


@pytest.mark.one_backend
def test_big_vision_towers_are_written_for_transformers(write, tmp_path):
    model = keras_vit.from_pretrained(write("siglip_two_towers"), tower="both")
    with mock.patch("os.replace", wraps=os.replace) as replace:
        checkpoints.save(model, tmp_path, format="huggingface")
    # The folder may be mounted, and files cannot be renamed from one file system to another.
    assert all(call.args[0].startswith(str(tmp_path)) for call in replace.call_args_list)
    restored = keras_vit.from_pretrained(tmp_path, tower="both")
    assert_matches_reference(restored, "siglip_two_towers")


@pytest.mark.one_backend
def test_towers_without_a_class_in_transformers_are_refused(write, tmp_path):
    model = keras_vit.from_pretrained(write("open_clip_custom"), tower="both")
    with pytest.raises(ValueError, match="no model with the text tower of siglip"):
        checkpoints.save(model, tmp_path / "written", format="huggingface")
    assert not (tmp_path / "written").exists()
    with pytest.raises(ValueError, match=r"\.keras file"):
        checkpoints.save(model, tmp_path / "towers.npz")
    with pytest.raises(ValueError, match="`class_names` must be None"):
        checkpoints.save(model, tmp_path / "named", format="huggingface", class_names=["a"])


@pytest.mark.one_backend
def test_image_tower_of_clip_without_a_projection_is_refused(write, tmp_path):
    model = keras_vit.from_pretrained(write("clip_text"), tower="both")
    size = {**model.image.arguments, "include_top": False}
    image = keras_vit.VisionTransformer(**size)
    text = {**model.text.arguments, "embedding_size": size["hidden_size"]}
    model = keras_vit.TwoTowers(image, keras_vit.TextTransformer(**text))
    with pytest.raises(ValueError, match="text tower of clip and the image tower CLIPVisionModel"):
        checkpoints.save(model, tmp_path / "written", format="huggingface")


@pytest.mark.one_backend
def test_second_positions_of_old_files_are_added(write, tmp_path):
    arrays = read_arrays(write("siglip_two_towers"))
    half = arrays["params/txt/pos_embedding"] / 2
    second = "params/txt/Encoder_0/pos_embedding"
    arrays |= {"params/txt/pos_embedding": half, second: half}
    path = tmp_path / "old.npz"
    np.savez(path, **arrays)
    model = keras_vit.from_pretrained(path, tower="both")
    assert_matches_reference(model, "siglip_two_towers")
    np.savez(path, **{**arrays, second: half[:, :1]})
    with pytest.raises(ValueError, match="does not use second positions"):
        keras_vit.from_pretrained(path, tower="text")


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "name, array, message",
    [
        ("text_model.final_layer_norm.bias", None, "lacks Transformer/encoder_norm/bias"),
        ("text_model.more", np.ones(3, "float32"), "does not use text_model.more"),
        ("text_model.head.bias", np.full(24, np.nan, "float32"), "NaN or infinity"),
        ("text_model.head.bias", np.ones(3, "float32"), r"must have shape \(24,\)"),
        ("logit_scale", None, "no scale of the logits"),
    ],
    ids=["missing", "unused", "nan", "shape", "scale"],
)
def test_rejects_damaged_file(name, array, message, write):
    folder = write("siglip_text")
    arrays = load_file(folder / "model.safetensors")
    if array is None:
        del arrays[name]
    else:
        arrays[name] = array
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained(folder, tower="both")


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "case, group, change, message",
    [
        ("open_clip", ("model_cfg", "text_cfg"), {"embed_cls": True}, "embed_cls=True"),
        ("open_clip", ("model_cfg", "text_cfg"), {"pool_type": "first"}, "pool_type='first'"),
        ("clip_text", ("text_config",), {"hidden_act": "relu"}, "`hidden_act` must be one of"),
    ],
)
def test_rejects_unsupported_config(case, group, change, message, write):
    (path,) = write(case).glob("*config.json")
    config = fields = files.read_json(path)
    for name in group:
        fields = fields[name]
    fields.update(change)
    files.write_json(path, config)
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained(path.parent, tower="text")


@pytest.mark.one_backend
def test_text_tower_requires_a_config(write):
    folder = write("clip_text")
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="does not determine num_heads"):
        keras_vit.from_pretrained(folder, tower="text")


@pytest.mark.one_backend
def test_rejects_unknown_tower_and_new_head_of_text(write):
    folder = write("clip_text")
    with pytest.raises(ValueError, match="`tower` must be one of"):
        keras_vit.from_pretrained(folder, tower="texts")
    with pytest.raises(ValueError, match="head='new'"):
        keras_vit.from_pretrained(folder, tower="text", head="new")


@pytest.mark.one_backend
def test_overrides_apply_to_both_towers(write):
    folder = write("siglip_text")
    model = keras_vit.from_pretrained(folder, tower="both", input_shape=(16, 24, 3), dropout=0.1)
    assert model.image_shape == (16, 24, 3)
    assert model.image.arguments["dropout"] == model.text.arguments["dropout"] == 0.1


SMALL_TEXT = {"vocabulary_size": 8, "num_layers": 1}


@pytest.mark.one_backend
def test_clip_size_has_a_causal_text_tower():
    model = families.two_towers("CLIP-B/32", text=SMALL_TEXT, num_layers=1)
    assert model.text.arguments.items() >= {"length": 77, "causal": True}.items()
    assert model.logit_bias is None
    # The projection of a new model is random, and not zero as the head of a classifier.
    assert np.ptp(to_numpy(model.image.head.kernel)) > 0.1


@pytest.mark.one_backend
def test_clip_size_keeps_the_projection_of_weights(tmp_path):
    one_layer = {"num_layers": 1, "mlp_dim": 8, "input_shape": (32, 32, 3)}
    image = keras_vit.CLIP_B32(classes=512, **one_layer)
    image.head.kernel.assign(image.head.kernel + 0.5)
    checkpoints.save(image, tmp_path / "image.npz")
    model = families.two_towers(
        "CLIP-B/32", text=SMALL_TEXT, weights=tmp_path / "image.npz", **one_layer
    )
    assert (to_numpy(model.image.head.kernel) == 0.5).all()


@pytest.mark.one_backend
def test_clip_size_needs_a_projection():
    with pytest.raises(ValueError, match="embeddings .* of the same size"):
        families.two_towers("CLIP-B/32", text=SMALL_TEXT, num_layers=1, include_top=False)


@pytest.mark.one_backend
def test_siglip_size_has_a_logit_bias():
    model = families.two_towers("SigLIP-i18n-B/16", text=SMALL_TEXT, num_layers=1)
    assert model.logit_bias is not None


@pytest.mark.one_backend
def test_text_tower_can_be_narrower_than_the_embeddings():
    tower = families.text_tower("SigLIP2-g-opt/16", **SMALL_TEXT)
    assert (tower.arguments["hidden_size"], tower.output_shape[-1]) == (1152, 1536)
