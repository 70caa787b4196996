"""Tests of `from_pretrained`: logits, arguments and errors."""

import json
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import checkpoints, families
from keras_vit.checkpoints import names, position_embeddings, published
from keras_vit.checkpoints.dialects.dialect import gelu_of

from ..shared import GOLDEN, randomize

FILES = {
    "timm_token.safetensors": {"num_heads": 4},
    "timm_gap.safetensors": {"num_heads": 4, "source_grid": (4, 6)},
    "hf_token.safetensors": {"num_heads": 4},
    "vit_token.ckpt.npz": {},
    "vit_gap.ckpt.npz": {"source_grid": (4, 6)},
    "vit_token_prelogits.ckpt.npz": {},
    "hybrid_2stage.ckpt.npz": {},
    "hybrid_stem_only.ckpt.npz": {},
    "bigvision_gap.ckpt.npz": {},
    "bigvision_map.ckpt.npz": {},
    "bigvision_tok_sincos.ckpt.npz": {"input_shape": (32, 32, 3)},
}


@pytest.mark.parametrize("file", FILES)
def test_from_pretrained_matches_logits(file):
    model = keras_vit.from_pretrained(GOLDEN / file, **FILES[file])
    with np.load(GOLDEN / f"{file.partition('.')[0]}.io.npz") as io:
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(model(io["inputs"])), io["logits"], atol=2e-5
        )


@pytest.mark.one_backend
def test_hugging_face_folder_matches_logits(tmp_path):
    shutil.copy(GOLDEN / "hf_token.safetensors", tmp_path / "model.safetensors")
    config = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = keras_vit.from_pretrained(tmp_path)
    with np.load(GOLDEN / "hf_token.io.npz") as io:
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(model(io["inputs"])), io["logits"], atol=2e-5
        )
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="must contain one .safetensors file.* with 0 such files"):
        keras_vit.from_pretrained(tmp_path)


@pytest.mark.one_backend
def test_constructor_omits_the_head_if_the_file_has_none(tmp_path):
    shutil.copy(GOLDEN / "families/dinov2.safetensors", tmp_path / "model.safetensors")
    shutil.copy(GOLDEN / "families/dinov2.config.json", tmp_path / "config.json")
    _, arguments = checkpoints.infer_architecture(tmp_path)
    tiny = families.Sizes(keras_vit.VisionTransformer)(
        "Tiny/14", "", **{**arguments, "include_top": True}
    )
    assert tiny(weights=tmp_path).output_shape == (None, arguments["hidden_size"])
    with pytest.raises(ValueError, match="head/kernel"):
        tiny(weights=tmp_path, classes=3)


@pytest.mark.one_backend
def test_overrides_replace_arguments_of_the_file():
    source = GOLDEN / "vit_token.ckpt.npz"
    model = keras_vit.from_pretrained(
        source, head="new", classes=3, input_shape=(48, 32, 1), channels="sum", dropout=0.1
    )
    assert model.input_shape == (None, 48, 32, 1) and model.output_shape == (None, 3)
    assert keras_vit.from_pretrained(source, include_top=False).output_shape == (None, 64)
    with pytest.raises(TypeError, match="did you mean `classes`"):
        keras_vit.from_pretrained(source, num_classes=3)
    with pytest.raises(ValueError, match="Received: shape=.*10"):
        keras_vit.from_pretrained(source, classes=3)


@pytest.fixture
def hf_folder(tmp_path):
    """Returns a folder with `hf_token.safetensors`, its config.json and a
    preprocessor_config.json."""
    shutil.copy(GOLDEN / "hf_token.safetensors", tmp_path / "model.safetensors")
    config = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": 0.5, "image_std": 0.5}')
    return tmp_path


@pytest.mark.one_backend
def test_given_preprocessing_wins(hf_folder):
    given = keras_vit.Preprocessing(
        mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 6.0), resize="stretch", crop_fraction=0.5
    )
    model = keras_vit.from_pretrained(hf_folder, preprocessing=given)
    assert model.preprocessing == given
    checkpoints.save(keras_vit.from_pretrained(hf_folder), hf_folder / "own.npz")
    assert keras_vit.from_pretrained(hf_folder / "own.npz").preprocessing.mean == (127.5,) * 3
    assert (
        keras_vit.from_pretrained(hf_folder / "own.npz", preprocessing=given).preprocessing == given
    )
    family = GOLDEN / "families" / "timm_siglip.safetensors"
    assert (
        keras_vit.from_pretrained(family, num_heads=3, preprocessing=given).preprocessing == given
    )
    arguments = {**model.arguments, "preprocessing": given}
    assert keras_vit.VisionTransformer(**arguments, weights=hf_folder).preprocessing == given
    del arguments["preprocessing"]
    assert (
        keras_vit.VisionTransformer(**arguments, weights=hf_folder).preprocessing.mean
        == (127.5,) * 3
    )


@pytest.mark.one_backend
def test_given_arguments_win(hf_folder):
    given = {"epsilon": 1e-3, "num_heads": 2, "mlp": "quick_gelu"}
    model = keras_vit.from_pretrained(hf_folder, **given)
    assert {name: model.arguments[name] for name in given} == given
    file = load_file(hf_folder / "model.safetensors")
    query = next(
        array
        for name, array in file.items()
        if name.endswith("layer.0.attention.attention.query.weight")
    )
    np.testing.assert_array_equal(
        model.blocks[0].attention.query.kernel, query.T.reshape(64, 2, 32)
    )
    for weights in (hf_folder, hf_folder / "own.npz"):
        for changed in ({"exact_gelu": False}, {"mlp": "gelu_tanh"}):
            if not weights.exists():
                checkpoints.save(model, weights)
            tanh = keras_vit.from_pretrained(weights, **changed)
            assert gelu_of(tanh.arguments) == "gelu_tanh"
    wrong = keras_vit.VisionTransformer(
        **{**model.arguments, "mlp": None, "exact_gelu": True, "epsilon": 1e-12}
    )
    with pytest.raises(ValueError, match="with num_heads=4, .*Received: num_heads=2"):
        checkpoints.load(wrong, hf_folder)


@pytest.mark.one_backend
def test_given_resampling_wins():
    source = GOLDEN / "timm_token.safetensors"
    small = keras_vit.from_pretrained(source, num_heads=4)
    old = names.canonical_variables(small)[names.POSITIONS]
    side = small.image_shape[0]
    for rule in ("zoom", "bicubic"):
        large = keras_vit.from_pretrained(
            source, num_heads=4, input_shape=(2 * side, side, 3), position_resampling=rule
        )
        new = np.asarray(names.canonical_variables(large)[names.POSITIONS])
        patches = position_embeddings.resample(np.asarray(old)[:, 1:], small.grid, large.grid, rule)
        np.testing.assert_allclose(new[:, 1:], patches, atol=1e-6)


@pytest.mark.one_backend
def test_num_heads_is_not_guessed_from_the_width(tmp_path):
    sizes = {"patch_size": 16, "hidden_size": 192, "num_layers": 2, "mlp_dim": 768, "num_heads": 6}
    model = keras_vit.VisionTransformer(
        **sizes, input_shape=(32, 32, 3), include_top=False, exact_gelu=True
    )
    checkpoints.save(model, tmp_path, "timm")
    assert keras_vit.from_pretrained(tmp_path).num_heads == 6
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match="`num_heads` is required, .*hidden_size=192"):
        keras_vit.from_pretrained(tmp_path)
    # Published sizes with equal dimensions have the same number of heads.
    known = {}
    for size in families.sizes().values():
        if "num_heads" in size:
            key = tuple(
                size[name] for name in ("patch_size", "hidden_size", "num_layers", "mlp_dim")
            )
            assert (
                known.setdefault((*key, size.get("mlp") == "swiglu"), size["num_heads"])
                == size["num_heads"]
            )


@pytest.mark.one_backend
def test_saved_models_are_restored(tmp_path):
    sizes = {"hidden_size": 8, "num_heads": 2, "mlp_dim": 12, "classes": 3, "num_layers": 2}
    for model in (
        keras_vit.VisionTransformer(
            patch_size=4, input_shape=(8, 12, 2), exact_gelu=True, epsilon=1e-5, **sizes
        ),
        keras_vit.AxialVisionTransformer(patch_size=4, input_shape=(8, 12, 3), **sizes),
        keras_vit.BiTResNet(depth=8, width=32, version=1, classes=3),
        keras_vit.BiTResNet(depth=8, classes=3),
    ):
        randomize(model)
        checkpoints.save(model, tmp_path / "model.npz")
        again = keras_vit.from_pretrained(tmp_path / "model.npz")
        assert [v.path for v in again.weights] == [v.path for v in model.weights]
        if "resnet" not in model.name:
            assert again.input_shape == model.input_shape
        for ours, theirs in zip(again.weights, model.weights):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.one_backend
def test_collection_name_alone_is_rejected(tmp_path, monkeypatch):
    row = families.PublishedWeights(
        "sam", "tiny", "ViT-Ti/16", "gs://vit_models/sam/tiny.npz", 5, 32
    )
    monkeypatch.setattr(published, "rows", lambda: [row])
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    (tmp_path / "sam").mkdir()
    source = keras_vit.ViT_Ti16(input_shape=(32, 32, 3), classes=5, head_bias=1.0)
    source.get_layer("head").kernel.assign(np.ones((192, 5)))
    checkpoints.save(source, tmp_path / "sam" / "tiny.npz")
    model = keras_vit.from_pretrained("sam:tiny")
    assert model.input_shape == (None, 32, 32, 3) and model.output_shape == (None, 5)
    with pytest.raises(
        ValueError,
        match="one file .*: sam:tiny.*Received: source='sam'",
    ):
        keras_vit.from_pretrained("sam")


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "file, message",
    [
        ("timm_token.safetensors", "`num_heads` is required"),
        ("timm_gap.safetensors", "`input_shape` is required, .* `source_grid` is required too"),
        ("bigvision_tok_sincos.ckpt.npz", "`input_shape` is required"),
    ],
)
def test_arguments_missing_from_the_file_are_required(file, message):
    heads = {} if "token.s" in file else {"num_heads": 4}
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained(GOLDEN / file, **heads)


@pytest.mark.one_backend
def test_unknown_family_error_names_the_model_type(tmp_path):
    arrays = load_file(GOLDEN / "hf_token.safetensors")
    config = {"hidden_act": "gelu", "num_attention_heads": 4, "model_type": "yolos"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    # The first name adds an unused array. The second name replaces the positions with an array that
    # fits no grid.
    for name in ("embeddings.detection_tokens", "vit.embeddings.position_embeddings"):
        save_file({**arrays, name: np.zeros((1, 8, 64), "float32")}, tmp_path / "model.safetensors")
        for head in ("keep", "new"):
            with pytest.raises(
                ValueError, match=r"\(the model type in its config.json is 'yolos'\); .*DINOv2"
            ):
                keras_vit.from_pretrained(tmp_path, head=head)


@pytest.mark.one_backend
def test_non_weight_file_error_names_its_kind(tmp_path):
    path = tmp_path / "model.safetensors"
    for content in (b"", b"<!DOCTYPE html>", b"version https://git-lfs.github.com/spec/v1\noid"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="header .* invalid.*Received: .*model.safetensors"):
            keras_vit.from_pretrained(tmp_path)
    path.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="PyTorch files are not supported. Received: "):
        keras_vit.from_pretrained(tmp_path)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="2 of 2 files .*: .*model-1.safetensors"):
        keras_vit.from_pretrained(tmp_path)
