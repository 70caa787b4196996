"""Tests of both towers of CLIP and SigLIP against transformers, open_clip and big_vision."""

import json
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import checkpoints, families, naflex
from keras_vit.families import towers

from ..shared import GOLDEN, read_arrays

FILES = GOLDEN / "text"
TOLERANCE = 2e-5
TRANSFORMERS = ("clip_text", "clip_text_gelu", "siglip_text")
CASES = (
    *TRANSFORMERS,
    "siglip2_text",
    "siglip_two_towers",
    "siglip_two_towers_scanned",
    "open_clip",
    "open_clip_custom",
)


def place(case, folder):
    """Copies the weights and config of a case as a library names them; returns their path."""
    if (FILES / f"{case}.npz").exists():
        return FILES / f"{case}.npz"
    prefix = "open_clip_" if case.startswith("open_clip") else ""
    weights = f"{prefix}model.safetensors"
    config = f"{prefix}config.json"
    folder.mkdir(exist_ok=True)
    shutil.copy(FILES / f"{case}.safetensors", folder / weights)
    shutil.copy(FILES / f"{case}.config.json", folder / config)
    return folder


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "model"


def reference(case):
    """Returns images, ids and the outputs of a library."""
    arrays = read_arrays(FILES / f"{case}.io.npz")
    if "pixels" in arrays:
        packed = (arrays[name] for name in ("pixels", "spatial_shapes", "mask"))
        arrays["images"] = np.asarray(naflex.pack(*packed))
    return arrays["images"], arrays["input_ids"].astype("int32"), arrays


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def assert_close(result, expected):
    result = keras.ops.convert_to_numpy(result)
    assert result.shape == expected.shape and result.dtype == np.float32
    assert np.abs(result - expected).max() < TOLERANCE * np.abs(expected).max()


def assert_matches(model, case):
    images, ids, expected = reference(case)
    assert_close(model.encode_image(images), unit(expected["image_embeds"]))
    assert_close(model.encode_text(ids), unit(expected["text_embeds"]))
    assert_close(model([images, ids]), expected["logits_per_image"])


@pytest.mark.parametrize("case", CASES)
def test_embeddings_and_logits_match_the_library(case, folder):
    source = place(case, folder)
    model = keras_vit.from_pretrained(source, tower="both")
    assert_matches(model, case)
    images, ids, expected = reference(case)
    text = keras_vit.from_pretrained(source, tower="text")
    assert_close(text(ids), keras.ops.convert_to_numpy(model.text(ids)))
    if "text_last_hidden_state" in expected and "mask_was_used" not in expected:
        assert_close(text.encode(ids), expected["text_last_hidden_state"])
    image = keras_vit.from_pretrained(source)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(image(images)), keras.ops.convert_to_numpy(model.image(images))
    )


@pytest.mark.parametrize("case", ["clip_text_gelu", "siglip2_text"])
def test_keras_file_restores_both_towers(case, folder, tmp_path):
    model = keras_vit.from_pretrained(place(case, folder), tower="both")
    model.save(tmp_path / "towers.keras")
    assert_matches(keras_vit.models.load_keras_file(tmp_path / "towers.keras"), case)


@pytest.mark.parametrize("case", TRANSFORMERS)
def test_written_folder_has_the_arrays_of_transformers(case, folder, tmp_path):
    source = place(case, folder)
    model = keras_vit.from_pretrained(source, tower="both")
    checkpoints.save(model, tmp_path / "written", format="huggingface")
    before = load_file(source / "model.safetensors")
    after = load_file(tmp_path / "written" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])
        assert array.shape == after[name].shape
    configs = [json.loads((f / "config.json").read_text()) for f in (source, tmp_path / "written")]
    names = ("architectures", "model_type", "text_config", "vision_config")
    for name in names:
        theirs, ours = (config[name] for config in configs)
        if isinstance(theirs, dict):
            unknown = ("dropout", "token_id", "initializer", "use_head", "architectures", "dtype")
            shared = [key for key in theirs if not any(word in key for word in unknown)]
            assert {key: ours.get(key) for key in shared} == {key: theirs[key] for key in shared}
        else:
            assert ours == theirs
    again = keras_vit.from_pretrained(tmp_path / "written", tower="both")
    assert_matches(again, case)
    assert again.preprocessing == model.preprocessing


def test_big_vision_towers_are_written_for_transformers(tmp_path):
    model = keras_vit.from_pretrained(FILES / "siglip_two_towers.npz", tower="both")
    checkpoints.save(model, tmp_path, format="huggingface")
    assert_matches(keras_vit.from_pretrained(tmp_path, tower="both"), "siglip_two_towers")


@pytest.mark.one_backend
def test_towers_without_a_class_in_transformers_are_refused(folder, tmp_path):
    model = keras_vit.from_pretrained(place("open_clip_custom", folder), tower="both")
    with pytest.raises(ValueError, match="no model with the text tower of siglip"):
        checkpoints.save(model, tmp_path / "written", format="huggingface")
    with pytest.raises(ValueError, match=r"\.keras file"):
        checkpoints.save(model, tmp_path / "towers.npz")
    with pytest.raises(ValueError, match="`class_names` must be None"):
        checkpoints.save(model, tmp_path / "named", format="huggingface", class_names=["a"])


@pytest.mark.one_backend
def test_second_positions_of_old_files_are_added(tmp_path):
    with np.load(FILES / "siglip_two_towers.npz") as file:
        arrays = {name.removeprefix("params/"): file[name] for name in file.files}
    half = arrays["txt/pos_embedding"] / 2
    arrays |= {"txt/pos_embedding": half, "txt/Encoder_0/pos_embedding": half}
    np.savez(tmp_path / "old.npz", **arrays)
    model = keras_vit.from_pretrained(tmp_path / "old.npz", tower="both")
    assert_matches(model, "siglip_two_towers")


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_model.final_layer_norm.bias": None}, "It lacks Transformer/encoder_norm/bias"),
        ({"text_model.more": np.ones(3, "float32")}, "does not use text_model.more"),
        ({"text_model.head.bias": np.full(24, np.nan, "float32")}, "NaN or infinity"),
        ({"text_model.head.bias": np.ones(3, "float32")}, r"must have shape \(24,\)"),
        ({"logit_scale": None}, "no scale of the logits"),
        ({"text_model.head.weight": None}, "no text tower"),
    ],
)
def test_damaged_files_are_refused(change, message, folder):
    place("siglip_text", folder)
    arrays = load_file(folder / "model.safetensors") | change
    arrays = {name: array for name, array in arrays.items() if array is not None}
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained(folder, tower="both")


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("open_clip", {"embed_cls": True}, "embed_cls=True"),
        ("open_clip", {"hf_model_name": "roberta-base"}, "hf_model_name='roberta-base'"),
        ("open_clip", {"pool_type": "first"}, "pool_type='first'"),
        ("clip_text", {"hidden_act": "relu"}, "`hidden_act` must be one of"),
    ],
)
def test_unknown_configs_are_refused(case, change, message, folder):
    place(case, folder)
    path = next(folder.glob("*config.json"))
    config = json.loads(path.read_text())
    inner = config["model_cfg"]["text_cfg"] if "model_cfg" in config else config["text_config"]
    inner |= change
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained(folder, tower="text")


@pytest.mark.one_backend
def test_other_errors_of_from_pretrained(folder, tmp_path):
    place("clip_text", folder)
    with pytest.raises(ValueError, match="`tower` must be one of image, text, both"):
        keras_vit.from_pretrained(folder, tower="texts")
    with pytest.raises(ValueError, match="head='new'"):
        keras_vit.from_pretrained(folder, tower="text", head="new")
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="does not determine num_heads, mlp, epsilon"):
        keras_vit.from_pretrained(folder, tower="text")


@pytest.mark.one_backend
def test_overrides_of_both_towers(folder):
    place("siglip_text", folder)
    model = keras_vit.from_pretrained(folder, tower="both", input_shape=(16, 24, 3), dropout=0.1)
    assert model.image_shape == (16, 24, 3)
    assert model.image.arguments["dropout"] == model.text.arguments["dropout"] == 0.1


@pytest.mark.one_backend
def test_published_sizes():
    small = {"vocabulary_size": 8, "num_layers": 1}
    model = families.two_towers("CLIP-B/32", text=small, num_layers=1)
    assert model.output_shape == (None, None)
    assert model.text.arguments["length"] == 77 and model.text.arguments["causal"]
    assert np.ptp(keras.ops.convert_to_numpy(model.image.head.kernel)) > 0.1
    siglip = families.text_tower("SigLIP2-g-opt/16", **small)
    assert siglip.output_shape == (None, 1536) and siglip.arguments["hidden_size"] == 1152
    assert families.two_towers("SigLIP-i18n-B/16", text=small, num_layers=1).logit_bias is not None
    with pytest.raises(ValueError, match="`size` must be one of"):
        families.text_tower("ViT-B/16")
    for name, size in towers.TEXT_SIZES.items():
        assert size["hidden_size"] % size["num_heads"] == 0, name
