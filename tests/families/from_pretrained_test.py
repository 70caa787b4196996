"""Tests of `from_pretrained`: logits, arguments and errors."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import checkpoints, families
from keras_vit.checkpoints import names, position_embeddings
from keras_vit.checkpoints.dialects.dialect import gelu_of

from ..checkpoints.helpers import VIT_TOKEN, assert_matches_logits
from ..shared import GOLDEN, SIZES, assert_close, to_numpy
from .golden_cases import write_case

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize(
    "file, arguments",
    [
        ("timm_token.safetensors", {"num_heads": 4}),
        ("timm_gap.safetensors", {"num_heads": 4, "source_grid": (4, 6)}),
        ("hf_token.safetensors", {"num_heads": 4}),
        ("vit_token.ckpt.npz", {}),
        ("vit_gap.ckpt.npz", {"source_grid": (4, 6)}),
        ("vit_token_prelogits.ckpt.npz", {}),
        ("hybrid_2stage.ckpt.npz", {}),
        ("hybrid_stem_only.ckpt.npz", {}),
        ("bigvision_gap.ckpt.npz", {}),
        ("bigvision_map.ckpt.npz", {}),
        ("bigvision_tok_sincos.ckpt.npz", {"input_shape": (32, 32, 3)}),
    ],
)
def test_from_pretrained_matches_logits(file, arguments):
    model = keras_vit.from_pretrained(GOLDEN / file, **arguments)
    assert_matches_logits(model, file.partition(".")[0], atol=2e-5)


HF_CONFIG = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_attention_heads": 4}


@pytest.fixture
def hf_folder(tmp_path):
    """Returns a folder with `hf_token.safetensors`, its config.json and a
    preprocessor_config.json."""
    shutil.copy(GOLDEN / "hf_token.safetensors", tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(HF_CONFIG))
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": 0.5, "image_std": 0.5}')
    return tmp_path


def test_rejects_a_second_source_of_weights():
    source = GOLDEN / "vit_token.ckpt.npz"
    with pytest.raises(ValueError, match="`weights` must not be set"):
        keras_vit.from_pretrained(source, weights=str(source))


def test_none_means_the_value_of_the_file():
    nothing = {"weights": None, "classes": None, "preprocessing": None}
    model = keras_vit.from_pretrained(VIT_TOKEN, **nothing)
    expected = keras_vit.from_pretrained(VIT_TOKEN)
    assert model.output_shape == expected.output_shape
    assert model.preprocessing == expected.preprocessing


def test_rejects_folder_without_weights(hf_folder):
    (hf_folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="with 0 such files"):
        keras_vit.from_pretrained(hf_folder)


def test_constructor_omits_the_head_if_the_file_has_none(tmp_path):
    folder = write_case("dinov2", tmp_path)
    _, arguments = checkpoints.infer_architecture(folder)
    sizes = families.Sizes(keras_vit.VisionTransformer)
    tiny = sizes("Tiny/14", "", **{**arguments, "include_top": True})
    assert tiny(weights=folder).output_shape == (None, arguments["hidden_size"])
    with pytest.raises(ValueError, match="head/kernel"):
        tiny(weights=folder, classes=3)


def test_overrides_replace_arguments_of_the_file():
    model = keras_vit.from_pretrained(
        VIT_TOKEN, head="new", classes=3, input_shape=(48, 32, 1), channels="sum", dropout=0.1
    )
    assert model.input_shape == (None, 48, 32, 1)
    assert model.output_shape == (None, 3)
    assert model.arguments["dropout"] == 0.1
    assert keras_vit.from_pretrained(VIT_TOKEN, include_top=False).output_shape == (None, 64)
    with pytest.raises(TypeError, match="did you mean `classes`"):
        keras_vit.from_pretrained(VIT_TOKEN, num_classes=3)


def test_given_preprocessing_replaces_that_of_the_file(hf_folder):
    given = keras_vit.Preprocessing(mean=(1, 2, 3), crop_fraction=0.5)
    model = keras_vit.from_pretrained(hf_folder)
    assert model.preprocessing.mean == (127.5,) * 3
    assert keras_vit.from_pretrained(hf_folder, preprocessing=given).preprocessing == given
    arguments = {**model.arguments, "weights": hf_folder}
    assert keras_vit.VisionTransformer(**arguments).preprocessing == model.preprocessing
    assert keras_vit.VisionTransformer(**arguments, preprocessing=given).preprocessing == given


def test_given_arguments_replace_those_of_the_config(hf_folder):
    given = {"epsilon": 1e-3, "num_heads": 2, "mlp": "quick_gelu"}
    model = keras_vit.from_pretrained(hf_folder, **given)
    assert {name: model.arguments[name] for name in given} == given
    arrays = load_file(hf_folder / "model.safetensors")
    query = arrays["vit.encoder.layer.0.attention.attention.query.weight"]
    kernel = model.blocks[0].attention.query.kernel
    np.testing.assert_array_equal(kernel, query.T.reshape(64, 2, 32))


@pytest.mark.parametrize("changed", [{"exact_gelu": False}, {"mlp": "gelu_tanh"}], ids=str)
def test_given_gelu_replaces_that_of_the_file(changed, hf_folder):
    path = hf_folder / "model.npz"
    checkpoints.save(keras_vit.from_pretrained(hf_folder), path)
    for source in (hf_folder, path):
        model = keras_vit.from_pretrained(source, **changed)
        assert gelu_of(model.arguments) == "gelu_tanh"


def test_given_exact_gelu_replaces_the_mlp_of_the_file(tmp_path):
    config = {"architecture": "vit_base_patch16_clip_224", "model_args": {"num_heads": 3}}
    folder = write_case("timm_clip", tmp_path, config=config)
    assert keras_vit.from_pretrained(folder).arguments["mlp"] == "gelu"
    model = keras_vit.from_pretrained(folder, exact_gelu=False)
    assert gelu_of(model.arguments) == "gelu_tanh"


def test_given_resampling_replaces_that_of_the_family():
    source = GOLDEN / "timm_token.safetensors"
    small = keras_vit.from_pretrained(source, num_heads=4)
    side = small.image_shape[0]
    large = keras_vit.from_pretrained(
        source, num_heads=4, input_shape=(2 * side, side, 3), position_resampling="zoom"
    )
    old, new = (names.canonical_variables(model)[names.POSITIONS] for model in (small, large))
    expected = position_embeddings.resample(to_numpy(old)[:, 1:], small.grid, large.grid, "zoom")
    assert_close(new[:, 1:], expected)


def test_num_heads_is_not_guessed_from_the_width(tmp_path):
    sizes = {**SIZES, "hidden_size": 192, "num_heads": 6}  # other models of this width have 3 heads
    model = keras_vit.VisionTransformer(
        **sizes, input_shape=(8, 8, 3), include_top=False, exact_gelu=True
    )
    checkpoints.save(model, tmp_path, "timm")
    assert keras_vit.from_pretrained(tmp_path).num_heads == 6
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match="`num_heads` is required"):
        keras_vit.from_pretrained(tmp_path)


def test_published_sizes_with_equal_dimensions_have_equal_num_heads():
    fields = ("patch_size", "hidden_size", "num_layers", "mlp_dim")
    num_heads = {}
    for name, size in families.sizes().items():
        dimensions = (*map(size.get, fields), size.get("mlp") == "swiglu")
        heads = size.get("num_heads")
        assert num_heads.setdefault(dimensions, heads) == heads, name


@pytest.mark.parametrize(
    "file, arguments, message",
    [
        ("timm_token.safetensors", {}, "`num_heads` is required"),
        ("timm_gap.safetensors", {"num_heads": 4}, "`source_grid` is required too"),
        ("bigvision_tok_sincos.ckpt.npz", {}, "`input_shape` is required"),
    ],
)
def test_arguments_missing_from_the_file_are_required(file, arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained(GOLDEN / file, **arguments)


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.detection_tokens",  # an array that the model does not use
        "vit.embeddings.position_embeddings",  # positions that fit no grid
    ],
)
def test_unknown_family_error_names_the_model_type(name, hf_folder):
    config = {**HF_CONFIG, "model_type": "yolos"}
    (hf_folder / "config.json").write_text(json.dumps(config))
    arrays = load_file(GOLDEN / "hf_token.safetensors")
    arrays[name] = np.zeros((1, 8, 64), "float32")
    save_file(arrays, hf_folder / "model.safetensors")
    with pytest.raises(ValueError, match="the model type in its config.json is 'yolos'"):
        keras_vit.from_pretrained(hf_folder, head="new")


def test_rejects_pytorch_file(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"PK")
    for source in (tmp_path, path):
        with pytest.raises(ValueError, match="PyTorch files are not supported"):
            keras_vit.from_pretrained(source)


def test_missing_shards_are_listed(tmp_path):
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="2 of 2 files .*: .*model-1.safetensors"):
        keras_vit.from_pretrained(tmp_path)
