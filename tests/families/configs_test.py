"""Tests of reading the config.json next to the weights."""

import json
import re

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.dialects import timm
from keras_vit.families import inference

from ..shared import FAMILY_FILES, SIZES, images_for

pytestmark = pytest.mark.one_backend


@pytest.fixture
def folder(tmp_path):
    """Returns a function that writes the arrays and config.json of a golden file to a folder, with
    changes."""

    def make(case, change=lambda arrays: arrays, **fields):
        save_file(
            change(load_file(FAMILY_FILES / f"{case}.safetensors")), tmp_path / "model.safetensors"
        )
        path = FAMILY_FILES / f"{case}.config.json"
        config = {**(json.loads(path.read_text()) if path.exists() else {}), **fields}
        if config:
            (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return make


def with_head(arrays):
    width = arrays["blocks.0.norm1.weight"].shape[0]
    kernel = np.random.default_rng(0).normal(size=(5, width)).astype("float32")
    return {**arrays, "head.weight": kernel, "head.bias": np.arange(5, dtype="float32")}


def fc_norm(arrays):
    return {
        ("fc_" if name.startswith("norm.") else "") + name: x
        for name, x in with_head(arrays).items()
    }


def logits_of(model, pool):
    """Returns random images and their logits. `pool` selects the class token or the mean of the
    patches."""
    images = images_for(model)
    names = {"token": "class", "avg": "patch"}
    tokens = np.asarray(
        keras.ops.convert_to_numpy(keras_vit.features(model, images, tokens=names[pool]))
    )
    kernel, bias = (keras.ops.convert_to_numpy(x) for x in (model.head.kernel, model.head.bias))
    pooled = tokens.reshape(2, -1, tokens.shape[-1]).mean(axis=1)
    return images, pooled @ kernel + bias


@pytest.mark.parametrize(
    "case, fields, pool",
    [
        ("timm_deit3", {"global_pool": "avg"}, "avg"),
        ("timm_deit3", {"global_pool": "token", "model_args": {"global_pool": "avg"}}, "avg"),
        ("timm_deit3", {}, "token"),
        ("timm_dinov3", {"global_pool": "token"}, "token"),
        ("timm_dinov3", {}, "avg"),  # timm's default
    ],
)
def test_timm_pooling_is_read(case, fields, pool, folder):
    path = folder(case, with_head, **fields)
    model = keras_vit.from_pretrained(path, num_heads=3, input_shape=(32, 32, 3))
    images, expected = logits_of(model, pool)
    np.testing.assert_allclose(model.predict(images, verbose=0), expected, rtol=1e-4, atol=1e-4)


def test_norm_after_pooling_is_read(folder):
    model = keras_vit.from_pretrained(folder("timm_deit3", fc_norm, global_pool="avg"), num_heads=3)
    assert (model.classifier, model.pool_norm is not None) == ("token_gap", True)


def test_rejects_head_trained_with_other_pooling(folder):
    path = folder("timm_deit3", with_head, global_pool="avg")
    with pytest.raises(ValueError, match="classifier='token_gap'.*Received: classifier='token' in"):
        keras_vit.from_pretrained(path, num_heads=3, classifier="token")
    model = keras_vit.from_pretrained(path, num_heads=3, classifier="token", head="new", classes=2)
    assert model.output_shape == (None, 2)


def test_timm_num_heads_is_read(folder):
    path = folder("timm_deit3", model_args={"num_heads": 6})
    assert keras_vit.from_pretrained(path).num_heads == 6
    for name, heads in (
        ("base_patch16_gap_224", 16),
        ("giant_patch16_radio_v3", 24),
        ("so400m_patch14_reg1_tipsv2", 16),
    ):
        assert timm.read_config({"architecture": f"vit_{name}"}).num_heads == heads
    assert timm.read_config({"architecture": "beit3_base_patch16_224"}).epsilon == 1e-5
    # SigLIP 2's and RADIO's.
    giant = {
        "patch_size": 16,
        "hidden_size": 1536,
        "num_layers": 40,
        "mlp_dim": 6144,
    }
    assert inference._published_heads({**giant, "classifier": "map"}) == 16
    assert inference._published_heads({**giant, "classifier": "token"}) is None


@pytest.mark.parametrize(
    "case, fields, message",
    [
        (
            "timm_deit3",
            {"global_pool": "max"},
            "`global_pool` must be token, avg, .*`global_pool` is 'max'",
        ),
        (
            "timm_deit3",
            {"architecture": "vit_base_patch16_rpn_224"},
            "vit_base_patch16_rpn_224 is not supported",
        ),
        (
            "timm_deit3",
            {"architecture": "vit_small_patch16_rope_ape_224"},
            "rope_ape_224 is not supported",
        ),
        (
            "timm_deit3",
            {"model_args": {"act_layer": "relu"}},
            "`act_layer` must be gelu or .*, not 'relu'",
        ),
        (
            "timm_deit3",
            {"model_args": {"norm_layer": "rmsnorm"}},
            "`norm_layer` must be layernorm, not 'rmsnorm'",
        ),
        (
            "timm_dinov2_swiglu",
            {"model_args": {"act_layer": "gelu"}},
            "`act_layer` must be silu, not 'gelu'",
        ),
        (
            "timm_eva02",
            {"model_args": {"use_rot_pos_emb": False}},
            "are not supported: use_rot_pos_emb=False",
        ),
        (
            "timm_eva02",
            {"model_args": {"ref_feat_shape": [4, 6]}},
            "`ref_feat_shape` must be a square, not \\[4, 6\\]",
        ),
        (
            "dinov3_gated",
            {"hidden_act": "gelu"},
            "`hidden_act` must be silu with `use_gated_mlp`, not 'gelu'",
        ),
        ("dino", {"pooler_act": "gelu"}, "`pooler_act` must be tanh, not 'gelu'"),
    ],
)
def test_rejects_unsupported_config_values(case, fields, message, folder):
    with pytest.raises(ValueError, match=message) as raised:
        keras_vit.from_pretrained(folder(case, **fields))
    assert "\n" not in str(raised.value) and "Received: " in str(raised.value)


ARCHITECTURE = {"architecture": "vit_base_patch16_224"}


@pytest.mark.parametrize(
    "case, fields, expected",
    [
        ("timm_deit3", {"model_args": {"act_layer": "quick_gelu"}}, {"mlp": "quick_gelu"}),
        ("timm_deit3", {"architecture": "vit_base_patch32_siglip_gap_256"}, {"exact_gelu": None}),
        ("timm_clip", ARCHITECTURE, {"epsilon": None, "mlp": "gelu"}),
        (
            "timm_clip",
            {"architecture": "vit_base_patch16_clip_224"},
            {"epsilon": 1e-5, "mlp": "gelu"},
        ),
        (
            "timm_clip",
            {**ARCHITECTURE, "model_args": {"act_layer": "gelu_tanh"}},
            {"mlp": "gelu_tanh"},
        ),
        ("timm_dinov3", {"model_args": {"img_size": [32, 64]}}, {"input_shape": (32, 64, 3)}),
        (
            "timm_dinov3",
            {"pretrained_cfg": {"input_size": [3, 48, 32]}},
            {"input_shape": (48, 32, 3)},
        ),
        ("dinov3", {"image_size": [48, 32]}, {"input_shape": (48, 32, 3)}),
    ],
)
def test_config_json_sets_arguments(case, fields, expected, folder):
    _, arguments = checkpoints.infer_architecture(folder(case, **fields), num_heads=3)
    assert {name: arguments.get(name) for name in expected} == expected


def test_other_rotary_models_are_not_dinov3(folder):
    path = folder(
        "timm_dinov3", lambda arrays: {n: x for n, x in arrays.items() if n != "cls_token"}
    )
    for options in ({}, {"head": "new", "classes": 2}):
        with pytest.raises(ValueError, match="the file requires its config.json"):
            keras_vit.from_pretrained(path, num_heads=3, input_shape=(32, 32, 3), **options)


@pytest.mark.parametrize("case", ["timm_dinov3", "timm_eva02"])
def test_rope_temperature_is_read(case, folder):
    path = folder(case, model_args={"rope_temperature": 30})
    assert checkpoints.infer_architecture(path, num_heads=3)[1]["rotary"]["theta"] == 30.0


# Nine positions fit a class token and a 2x4 grid, or a 3x3 grid without a class token.
@pytest.mark.parametrize(
    "fields", [{"model_args": {"img_size": [2, 4]}}, {"pretrained_cfg": {"input_size": [3, 2, 4]}}]
)
def test_image_size_determines_the_grid(fields, folder):
    side = load_file(FAMILY_FILES / "timm_deit3.safetensors")["patch_embed.proj.weight"].shape[-1]
    fields = json.loads(json.dumps(fields).replace("2, 4", f"{2 * side}, {4 * side}"))
    path = folder(
        "timm_deit3",
        lambda arrays: {**arrays, "pos_embed": arrays["pos_embed"][:, :1].repeat(9, 1)},
        **fields,
    )
    model = keras_vit.from_pretrained(path, num_heads=3)
    assert (model.grid, model.arguments["class_token_position"]) == ((2, 4), True)


def with_registers(arrays):
    """Adds two registers. As in timm, their positions follow the position of the class token."""
    positions = arrays["pos_embed"]
    row = np.arange(positions.shape[2], dtype="float32")
    rows = [np.stack([row, 2 * row, 3 * row])[None], positions[:, -16:]]
    return {
        **arrays,
        "reg_token": np.ones((1, 2, len(row)), "float32"),
        "pos_embed": np.concatenate(rows, axis=1),
    }


def test_register_positions_are_added_to_the_registers(folder):
    model = keras_vit.from_pretrained(folder("timm_deit3", with_registers), num_heads=3)
    row = np.arange(model.hidden_size)
    weights = {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}
    registers, positions = (
        next(v for k, v in weights.items() if x in k) for x in ("register_tokens/", "pos_embedding")
    )
    np.testing.assert_array_equal(registers[0], [1 + 2 * row, 1 + 3 * row])
    np.testing.assert_array_equal(positions[0, 0], row)
    assert positions.shape[1] == 17


def test_rejects_attention_pooling_with_a_class_token(folder):
    path = folder("timm_siglip", lambda arrays: {**arrays, "cls_token": arrays["pos_embed"][:, :1]})
    with pytest.raises(
        ValueError, match="`global_pool` must not be map .*Received: global_pool='map'"
    ):
        keras_vit.from_pretrained(path, num_heads=3)


@pytest.mark.parametrize("case, prefix", [("dino", ""), ("ijepa", ""), ("deit_distilled", "deit.")])
def test_pretraining_arrays_are_ignored(case, prefix, folder):
    def change(arrays):
        width = len(arrays[f"{prefix}layernorm.bias"])
        extra = {"embeddings.mask_token": np.ones((1, 1, width), "float32")}
        if prefix:
            extra |= {
                "pooler.dense.weight": np.eye(width, dtype="float32"),
                "pooler.dense.bias": np.ones(width, "float32"),
            }
        return {**arrays, **{prefix + name: array for name, array in extra.items()}}

    keras_vit.from_pretrained(folder(case, change))


def test_empty_register_array_means_no_registers(folder):
    def change(arrays):
        name = "embeddings.register_tokens"
        return {**arrays, name: arrays[name][:, :0]}

    model = keras_vit.from_pretrained(folder("dinov3", change, num_register_tokens=0))
    assert model.num_prefix_tokens == 1


def test_qk_norms_have_timm_names(tmp_path):
    sizes = {**SIZES, "patch_size": 8, "input_shape": (8, 8, 3)}
    sizes |= {"include_top": False}
    checkpoints.save(keras_vit.VisionTransformer(**sizes, qk_norm=True), tmp_path, format="timm")
    assert load_file(tmp_path / "model.safetensors")["blocks.0.attn.q_norm.weight"].shape == (4,)
    assert "query_norm" in "".join(
        weight.path for weight in keras_vit.from_pretrained(tmp_path).weights
    )


@pytest.mark.parametrize(
    "case, fields, message",
    [
        (
            "dinov2",
            {"num_attention_heads": "3"},
            "the number of attention heads must be .*, not '3'",
        ),
        (
            "dinov2",
            {"layer_norm_eps": "small"},
            "must be a positive number, not 'small'",
        ),
        ("dinov2", {"hidden_act": ["gelu"]}, "config.json next to the weights is invalid"),
        ("dinov3", {"rope_theta": [1]}, "config.json next to the weights is invalid"),
        ("clip", {"vision_config": None}, "`vision_config` must be a JSON object, not None"),
        ("siglip", {"vision_config": None}, "`vision_config` must be a JSON object, not None"),
        ("timm_deit3", {"model_args": [1]}, "config.json next to the weights is invalid"),
    ],
)
def test_rejects_config_value_of_wrong_type(case, fields, message, folder):
    test_rejects_unsupported_config_values(case, fields, message, folder)


def test_rejects_embedding_of_non_square_patches(folder):
    def change(arrays):
        name = next(
            name
            for name in arrays
            if name.endswith("vision_model.embeddings.patch_embedding.weight")
        )
        return {**arrays, name: arrays[name].reshape(len(arrays[name]), -1)[:, 1:]}

    with pytest.raises(ValueError, match="a matrix with one row for each value.*Received: shape="):
        keras_vit.from_pretrained(folder("siglip", change))


@pytest.mark.parametrize("case", ["clip", "siglip"])
def test_num_heads_defaults_to_12_as_in_transformers(case, folder):
    config = json.loads((FAMILY_FILES / f"{case}.config.json").read_text())
    del config["vision_config"]["num_attention_heads"]
    path = folder(case, vision_config=config["vision_config"])
    assert keras_vit.from_pretrained(path).num_heads == 12


@pytest.mark.parametrize(
    "case, features, message",
    [
        ("dinov2", 2, "reads the class token and the mean of the patches"),
        ("clip", 1, "reads the mean of the patches without a norm"),
        ("deit_distilled", 1, "reads the class token of a model with a distillation token"),
    ],
)
def test_unsupported_head_can_be_dropped(case, features, message, folder):
    def change(arrays):
        arrays = {
            name: array
            for name, array in arrays.items()
            if not re.search("classifier|visual_projection", name)
        }
        width = next(len(array) for name, array in arrays.items() if name.endswith("norm.bias"))
        return {
            **arrays,
            "classifier.weight": np.ones((5, features * width), "float32"),
            "classifier.bias": np.ones(5),
        }

    path = folder(case, change)
    with pytest.raises(ValueError, match=f"{message}.*include_top=False.*Received: "):
        keras_vit.from_pretrained(path)
    keras_vit.from_pretrained(path, include_top=False)


def test_siglip_classifier_reads_the_mean_of_patches(folder):
    def change(arrays):
        kernel = np.random.default_rng(0).normal(size=(5, 24)).astype("float32")
        return {**arrays, "classifier.weight": kernel, "classifier.bias": np.ones(5, "float32")}

    model = keras_vit.from_pretrained(folder("siglip", change))
    images, expected = logits_of(model, "avg")
    np.testing.assert_allclose(model.predict(images, verbose=0), expected, rtol=1e-4, atol=1e-4)


def test_rejects_positions_without_a_class_token_row(folder):
    def change(arrays):
        name = "embeddings.position_embeddings"
        return {**arrays, name: arrays[name][:, 1:]}

    path = folder("dinov2", change)
    with pytest.raises(ValueError, match="`input_shape` is required"):
        keras_vit.from_pretrained(path)
    with pytest.raises(ValueError, match="pos_embedding' in the checkpoint must be "):
        keras_vit.from_pretrained(path, input_shape=(42, 42, 3))
