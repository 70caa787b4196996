"""Tests of SigLIP, CLIP, DeiT and EVA-02: outputs, weights and preprocessing."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import checkpoints, families
from keras_vit.checkpoints import names, position_embeddings

from ..shared import FAMILY_FILES, assert_close, read_arrays

_TIMM = {"tokens": "encoded", "output": "output"}
# Maps each golden file to (arguments of `from_pretrained`, {reference output: model output}).
CASES = {
    "clip": (
        {},
        {
            "last_hidden_state": "last",
            "pooler_output": "pooled",
            "image_embeds": "output",
            "hidden_1": "1",
        },
    ),
    "clip_gelu": (
        *(
            {},
            {
                "last_hidden_state": "last",
                "pooler_output": "pooled",
                "image_embeds": "output",
                "hidden_1": "1",
            },
        ),
    ),
    "timm_clip": ({"num_heads": 3, "mlp": "quick_gelu"}, _TIMM),
    "clipa": ({}, {"output": "output"}),
    "siglip": ({}, {"last_hidden_state": "encoded", "pooler_output": "output", "hidden_1": "1"}),
    "siglip_bigvision": (
        {},
        {"last_hidden_state": "encoded", "pooler_output": "output", "hidden_1": "1"},
    ),
    "siglip_bigvision_scanned": (
        {},
        {"last_hidden_state": "encoded", "pooler_output": "output", "hidden_1": "1"},
    ),
    "timm_siglip": ({"num_heads": 3}, _TIMM),
    "deit_distilled": (
        {},
        {"logits": "output", "cls_logits": "first", "distillation_logits": "second"},
    ),
    "timm_deit_distilled": ({"num_heads": 3}, _TIMM),
    "timm_deit3": ({"num_heads": 3}, _TIMM),
    "timm_eva02": ({"num_heads": 3}, _TIMM),
    "timm_eva02_separate": ({"num_heads": 3}, _TIMM),
    "timm_eva02_clip": ({"num_heads": 3}, _TIMM),
}
CONFIGS = {"timm_eva02": {"model_args": {"ref_feat_shape": [4, 4]}}}


def folder_of(case, path, arrays=None, config=None):
    """Returns the path of a golden file for `from_pretrained`.

    An .npz file is used in place. Otherwise, the arrays and the config are written to the folder
    `path`.
    """
    if (FAMILY_FILES / f"{case}.npz").exists():
        return FAMILY_FILES / f"{case}.npz"
    arrays = load_file(FAMILY_FILES / f"{case}.safetensors") if arrays is None else arrays
    save_file(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        path / "model.safetensors",
    )
    if config is None and (FAMILY_FILES / f"{case}.config.json").exists():
        config = json.loads((FAMILY_FILES / f"{case}.config.json").read_text())
    if config := config or CONFIGS.get(case):
        (path / "config.json").write_text(json.dumps(config))
    if (FAMILY_FILES / f"{case}.open_clip_config.json").exists():
        shutil.copy(FAMILY_FILES / f"{case}.open_clip_config.json", path / "open_clip_config.json")
    return path


def outputs(case):
    return read_arrays(FAMILY_FILES / f"{case.partition('_bigvision')[0]}.io.npz")


@pytest.mark.parametrize("case", CASES)
def test_outputs_match_the_reference(case, tmp_path):
    arguments, parts = CASES[case]
    expected = outputs(case)
    model = keras_vit.from_pretrained(folder_of(case, tmp_path), **arguments)
    out = model.intermediates(expected["images"])
    out |= {"output": model(expected["images"]), "pooled": out["pre_logits"]}
    out |= {"last": out["tokens"][-1], "1": out["tokens"][1]}
    if model.num_class_tokens == 2:
        first = out["encoded"][:, 0]
        second = out["encoded"][:, 1]
        out["first"] = keras.ops.matmul(first, model.head.kernel) + model.head.bias
        out["second"] = model.head.distillation(second)
    for name, part in parts.items():
        assert_close(out[part], expected[name])
    features = keras_vit.features(model, expected["images"], tokens="patch", grid=True)
    assert_close(features.reshape(2, 16, 24), keras.ops.convert_to_numpy(out["encoded"])[:, -16:])


@pytest.mark.parametrize("case", ["timm_eva02_separate", "timm_eva02_clip"])
def test_other_image_size_matches_the_reference(case, tmp_path):
    expected = outputs(case)
    images = expected["images_resized"]
    model = keras_vit.from_pretrained(
        folder_of(case, tmp_path), num_heads=3, input_shape=images.shape[1:]
    )
    assert_close(model.intermediates(images)["encoded"], expected["tokens_resized"])
    assert_close(model(images), expected["output_resized"])


def renamed(case, *renames, leave_out="$^"):
    arrays = {}
    for name, array in load_file(FAMILY_FILES / f"{case}.safetensors").items():
        if not re.match(leave_out, name):
            for pattern, replacement in renames:
                name = re.sub(pattern, replacement, name)
            arrays[name] = array
    return arrays


def joined(arrays, old, new):
    """Concatenates arrays of each module, such as query, key and value, under a new name."""
    pattern = re.compile(rf"(.*){re.escape(old[0])}(weight|bias)")
    for match in [match for name in arrays if (match := pattern.fullmatch(name))]:
        parts = [arrays.pop(f"{match[1]}{part}{match[2]}") for part in old]
        arrays[f"{match[1]}{new}{match[2]}"] = np.concatenate(parts)
    return arrays


_HF_BLOCK = ((r"layer_norm", "norm"), (r"self_attn\.out_proj", "attn.proj"), (r"self_attn", "attn"))
_PARTS = ("attn.q_proj.", "attn.k_proj.", "attn.v_proj.")


def clip_original():
    arrays = renamed(
        "clip",
        (r"vision_model\.encoder\.layers", "visual.transformer.resblocks"),
        (r"vision_model\.embeddings\.patch_embedding", "visual.conv1"),
        (r"vision_model\.embeddings\.position_embedding\.weight", "visual.positional_embedding"),
        (r"vision_model\.embeddings\.class_embedding", "visual.class_embedding"),
        (r"vision_model\.pre_layrnorm", "visual.ln_pre"),
        (r"vision_model\.post_layernorm", "visual.ln_post"),
        (r"layer_norm(\d)", r"ln_\1"),
        (r"self_attn", "attn"),
        (r"mlp\.fc1", "mlp.c_fc"),
        (r"mlp\.fc2", "mlp.c_proj"),
        (r"text_model\.", "transformer.text."),
    )
    arrays["visual.proj"] = arrays.pop("visual_projection.weight").T
    return joined(arrays, _PARTS, "attn.in_proj_")


def tower_as_timm(case):
    arrays = renamed(
        *(case, (r"vision_model\.encoder\.layers", "blocks"), *_HF_BLOCK),
        (r"vision_model\.embeddings\.patch_embedding", "patch_embed.proj"),
        (r"vision_model\.embeddings\.position_embedding\.weight", "pos_embed"),
        (r"vision_model\.embeddings\.class_embedding", "cls_token"),
        (r"vision_model\.pre_layrnorm", "norm_pre"),
        (r"vision_model\.post_layernorm", "norm"),
        (r"visual_projection", "head"),
        (r"vision_model\.head\.probe", "attn_pool.latent"),
        (r"vision_model\.head\.attention\.out_proj", "attn_pool.proj"),
        (r"vision_model\.head\.layernorm", "attn_pool.norm"),
        (r"vision_model\.head\.mlp", "attn_pool.mlp"),
        leave_out="text|logit",
    )
    for ending in ("weight", "bias"):
        if (array := arrays.pop(f"vision_model.head.attention.in_proj_{ending}", None)) is not None:
            arrays[f"attn_pool.q.{ending}"] = array[:24]
            arrays[f"attn_pool.kv.{ending}"] = array[24:]
    return joined(arrays, _PARTS, "attn.qkv.")


def deit_as_timm():
    arrays = renamed(
        *("deit_distilled", (r"deit\.encoder\.layer\.", "blocks."), (r"layernorm_before", "norm1")),
        *((r"layernorm_after", "norm2"), (r"attention\.output\.dense", "attn.proj")),
        *(
            (r"attention\.attention\.", "attn."),
            (r"intermediate\.dense", "mlp.fc1"),
            (r"output\.dense", "mlp.fc2"),
        ),
        *(
            (r"deit\.embeddings\.cls_token", "cls_token"),
            (r"deit\.embeddings\.distillation_token", "dist_token"),
        ),
        (r"deit\.embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
        *((r"deit\.embeddings\.position_embeddings", "pos_embed"), (r"deit\.layernorm", "norm")),
        *((r"cls_classifier", "head"), (r"distillation_classifier", "head_dist")),
    )
    return joined(arrays, ("attn.query.", "attn.key.", "attn.value."), "attn.qkv.")


def eva02_original():
    return renamed(
        *(
            "timm_eva02_clip",
            (r"attn\.q_proj\.bias", "attn.q_bias"),
            (r"attn\.v_proj\.bias", "attn.v_bias"),
        ),
        *(
            (r"attn\.norm", "attn.inner_attn_ln"),
            (r"fc1_g", "w1"),
            (r"fc1_x", "w2"),
            (r"mlp\.norm", "mlp.ffn_ln"),
        ),
        (r"mlp\.fc2", "mlp.w3"),
    ) | {"rope.freqs_cos": np.ones(3, "float32")}


# Maps each naming scheme to (golden file, function that returns its renamed arrays, config.json).
DIALECTS = {
    "clip original": ("clip", clip_original, {}),
    "clip timm": (
        "clip",
        lambda: tower_as_timm("clip"),
        {"architecture": "vit_base_patch32_clip_quickgelu_224"},
    ),
    "siglip timm": (
        "siglip",
        lambda: tower_as_timm("siglip"),
        {"architecture": "vit_so400m_patch16_siglip_256"},
    ),
    "siglip tower alone": (
        "siglip",
        lambda: renamed("siglip", (r"vision_model\.", ""), leave_out="text|logit"),
        {},
    ),
    "deit timm": ("deit_distilled", deit_as_timm, {}),
    "deit3 original": (
        "timm_deit3",
        lambda: renamed("timm_deit3", (r"ls(\d)\.gamma", r"gamma_\1")),
        {},
    ),
    "eva02 original": ("timm_eva02_clip", eva02_original, {}),
}


@pytest.mark.one_backend
@pytest.mark.parametrize("dialect", DIALECTS)
def test_files_with_other_names_load_the_same_model(dialect, tmp_path):
    case, arrays, config = DIALECTS[dialect]
    (tmp_path / "other").mkdir()
    folder = folder_of(case, tmp_path / "other", arrays(), config)
    arguments = {"num_heads": 3, **({"mlp": "quick_gelu"} if dialect == "clip original" else {})}
    models = (keras_vit.from_pretrained(folder_of(case, tmp_path), **arguments),)
    models += (keras_vit.from_pretrained(folder, **arguments),)
    for ours, theirs in zip(models[0].weights, models[1].weights, strict=True):
        assert ours.path == theirs.path
        np.testing.assert_array_equal(ours, theirs)
    for name in ("mlp", "exact_gelu", "rotary", "classifier"):
        assert models[0].get_config()[name] == models[1].get_config()[name]
    for name in ("mean", "std", "resize"):  # libraries decode and crop differently
        assert getattr(models[0].preprocessing, name) == getattr(models[1].preprocessing, name)


@pytest.mark.one_backend
def test_deit3_with_folded_layer_scale_matches_logits(tmp_path):
    arrays = load_file(FAMILY_FILES / "timm_deit3.safetensors")
    for i in range(3):
        for number, module in ((1, "attn.proj"), (2, "mlp.fc2")):
            scale = arrays.pop(f"blocks.{i}.ls{number}.gamma")
            arrays[f"blocks.{i}.{module}.weight"] *= scale[:, None]
            arrays[f"blocks.{i}.{module}.bias"] *= scale
    model = keras_vit.from_pretrained(folder_of("folded", tmp_path, arrays), num_heads=3)
    checkpoints.save(model, tmp_path / "model.npz")
    expected = outputs("timm_deit3")
    assert_close(
        keras_vit.from_pretrained(tmp_path / "model.npz")(expected["images"]), expected["output"]
    )


@pytest.mark.one_backend
@pytest.mark.parametrize("case", ["clip", "siglip"])
def test_text_arrays_are_reported_as_unused(case, tmp_path):
    model = keras_vit.from_pretrained(folder_of(case, tmp_path))
    report = checkpoints.load(model, folder_of(case, tmp_path))
    text = [
        name
        for name in load_file(FAMILY_FILES / f"{case}.safetensors")
        if re.match("text|logit", name)
    ]
    assert sorted(name for name, _ in report.unused) == sorted(text)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "case", ["clip", "siglip", "timm_deit_distilled", "timm_deit3", "timm_eva02_separate"]
)
def test_head_can_be_replaced_at_another_image_size(case, tmp_path):
    arguments = {"num_heads": 3, "input_shape": (48, 24, 3)}
    folder = folder_of(case, tmp_path)
    model = keras_vit.from_pretrained(folder, head="new", include_top=True, classes=7, **arguments)
    assert model.output_shape == (None, 7) and not np.any(model.head.kernel)
    model = keras_vit.from_pretrained(folder, include_top=False, **arguments)
    assert model.output_shape == (None, 48 if model.num_class_tokens == 2 else 24)


@pytest.mark.one_backend
def test_preprocessing_follows_the_weights(tmp_path):
    means = {}
    for case in ("clip", "siglip", "timm_deit3", "timm_eva02_separate"):
        (tmp_path / case).mkdir()
        model = keras_vit.from_pretrained(folder_of(case, tmp_path / case), num_heads=3)
        means[case] = (round(model.preprocessing.mean[0], 2), model.preprocessing.resize)
    assert means == {
        "clip": (122.77, "shorter_side"),
        "siglip": (127.5, "stretch"),
        "timm_deit3": (123.67, "shorter_side"),
        "timm_eva02_separate": (122.77, "shorter_side"),
    }


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"do_normalize": False}, {"mean": (0, 0, 0), "std": (255, 255, 255)}),
        (
            {"do_rescale": False, "image_mean": 127.5, "image_std": 100},
            {"mean": (127.5,) * 3, "std": (100,) * 3},
        ),
        ({"rescale_factor": 1 / 127.5, "image_mean": 1, "image_std": 1}, {"mean": (127.5,) * 3}),
        (
            {"size": {"shortest_edge": 20}, "crop_size": 15},
            {"resize": "shorter_side", "crop_fraction": 0.75},
        ),
        (
            {"size": 20, "crop_size": 15, "feature_extractor_type": "DeiTFeatureExtractor"},
            {"resize": "stretch", "crop_fraction": 0.75},
        ),
        (
            {"size": 20, "crop_size": 15, "feature_extractor_type": "CLIPFeatureExtractor"},
            {"resize": "shorter_side", "crop_fraction": 0.75},
        ),
    ],
)
def test_preprocessor_config_sets_preprocessing(changes, expected, tmp_path):
    preprocessing = preprocessing_from({"resample": 3, **changes}, tmp_path)
    assert preprocessing.interpolation == "bicubic"
    for name, value in expected.items():
        np.testing.assert_equal(getattr(preprocessing, name), value)


def preprocessing_from(config, tmp_path):
    standard = {
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"height": 16, "width": 16},
        "resample": 3,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**standard, **config}))
    return keras_vit.from_pretrained(folder_of("siglip", tmp_path)).preprocessing


@pytest.mark.one_backend
def test_processor_config_takes_precedence(tmp_path):
    nested = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 20},
        "crop_size": {"height": 15},
    }
    nested |= {
        "do_center_crop": True,
        "image_mean": [0.25] * 3,
        "image_std": [0.5] * 3,
        "resample": 3,
    }
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": nested}))
    found = preprocessing_from({}, tmp_path)
    assert (found.resize, found.crop_fraction, found.mean) == ("shorter_side", 0.75, (63.75,) * 3)
    assert found.library == "transformers"
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"processor_class": "CLIPProcessor"})
    )
    assert preprocessing_from({}, tmp_path).mean == (127.5,) * 3
    for wrong in ({"image_std": [0, 0, 0]}, 1):
        (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": wrong}))
        with pytest.raises(ValueError, match="The processor_config.json .* is invalid"):
            preprocessing_from({}, tmp_path)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "changes", [{"interpolation": "lanczos"}, {"interpolation": "box"}, {"crop_mode": "border"}]
)
def test_unsupported_timm_preprocessing_is_reported(changes, tmp_path):
    config = {"pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9, **changes}}
    folder = folder_of("timm_deit3", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match=f"Ignored .*{next(iter(changes.values()))}.*config.json"):
        model = keras_vit.from_pretrained(folder, num_heads=3)
    expected = ("bicubic", 0.9, "torchvision")
    found = model.preprocessing
    assert (found.interpolation, found.crop_fraction, found.library) == expected


@pytest.mark.one_backend
def test_unsupported_preprocessor_configs_are_reported(tmp_path):
    for changes, words in (
        ({"resample": 1}, "resample=1 "),
        ({"do_resize": False}, "do_resize=False "),
    ):
        with pytest.warns(UserWarning, match=f"Ignored {words}in preprocessor_config.json"):
            preprocessing_from(changes, tmp_path)
    for changes in (
        {"image_std": [0, 0, 0]},
        {"image_mean": "x"},
        {"rescale_factor": 0},
        {"image_mean": [0.5]},
    ):
        with pytest.raises(
            ValueError,
            match="The preprocessor_config.json .* is invalid",
        ):
            preprocessing_from(changes, tmp_path)


@pytest.mark.one_backend
@pytest.mark.parametrize("case", ["clip", "siglip"])
def test_positions_are_resampled_with_the_bicubic_rule(case, tmp_path):
    small = keras_vit.from_pretrained(folder_of(case, tmp_path))
    rows, columns = (side + 2 for side in small.grid)
    patch = small.arguments["patch_size"]
    large = keras_vit.from_pretrained(tmp_path, input_shape=(rows * patch, columns * patch, 3))
    old, new = (
        np.asarray(names.canonical_variables(model)[names.POSITIONS]) for model in (small, large)
    )
    expected = position_embeddings.resample(old, small.grid, large.grid, "bicubic")
    np.testing.assert_allclose(new, expected, atol=1e-6)


@pytest.mark.one_backend
def test_clip_weights_of_unknown_source_require_mlp(tmp_path):
    with pytest.raises(ValueError, match='`mlp` is required, .*: "quick_gelu" for OpenAI and DFN'):
        keras_vit.from_pretrained(folder_of("timm_clip", tmp_path), num_heads=3)
    (tmp_path / "config.json").write_text('{"architecture": "vit_base_patch32_clip_224.laion2b"}')
    assert keras_vit.from_pretrained(tmp_path, num_heads=3).arguments["mlp"] == "gelu"
    config = {"architecture": "vit_base_patch32_clip_224", "pretrained_cfg": {"tag": "openai"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert keras_vit.from_pretrained(tmp_path, num_heads=3).arguments["mlp"] == "quick_gelu"


@pytest.mark.one_backend
def test_published_clip_weights_set_the_activation(monkeypatch):
    built = {}
    monkeypatch.setattr(
        families.clip._size, "constructor", lambda **arguments: built.update(arguments)
    )
    monkeypatch.setattr("keras_vit.families.registry.check_arguments", lambda *_: None)
    monkeypatch.setattr("keras_vit.checkpoints.published.resolve", lambda *_: None)
    families.CLIP_B32(weights="laion2b")
    assert built["mlp"] == "gelu"
    families.CLIP_B32(weights="openai")
    assert built["mlp"] == "quick_gelu"


def test_given_activation_matches_the_reference(tmp_path):
    expected = outputs("timm_siglip")
    model = keras_vit.from_pretrained(
        folder_of("timm_siglip", tmp_path), num_heads=3, mlp="quick_gelu"
    )
    assert_close(model(expected["images"]), expected["output_quick_gelu"])


@pytest.mark.one_backend
def test_open_clip_config_is_read(tmp_path):
    folder = folder_of("clipa", tmp_path)
    preprocessing = keras_vit.from_pretrained(folder).preprocessing
    np.testing.assert_allclose(preprocessing.mean, [123.675, 116.28, 103.53])
    assert (preprocessing.resize, preprocessing.interpolation) == ("stretch", "bilinear")
    config = json.loads((folder / "open_clip_config.json").read_text())
    tower = config["model_cfg"]["vision_cfg"]
    for change, message in (
        ({"attentional_pool": True}, "attentional_pool=True"),
        ({"timm_model_name": "vit_base"}, "timm_model_name='vit_base'"),
        ({"pool_type": "none"}, "pool_type='none'"),
    ):
        changed = {"model_cfg": {"vision_cfg": {**tower, **change}}}
        (folder / "open_clip_config.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=f"not supported: {message}. Received: "):
            keras_vit.from_pretrained(folder)
    (folder / "open_clip_config.json").unlink()
    with pytest.raises(ValueError, match="open_clip_config.json .* is missing, .* Received: "):
        keras_vit.from_pretrained(folder)


# Every CLIP release of timm 1.0.31: `architecture: {GELU: tags}`. timm marks the releases that were
# trained with QuickGELU, except `dfn2b` of ViT-B/16, which open_clip marks.
_META = "metaclip_2pt5b metaclip_400m"
_TUNED = "laion2b_ft_in12k_in1k laion2b_ft_in1k openai_ft_in12k_in1k openai_ft_in1k"
RELEASES = {
    "vit_base_patch32_clip_224": {
        "quick_gelu": f"openai laion400m_e31 laion400m_e32 {_META}",
        "gelu": f"laion2b datacompxl {_TUNED}",
    },
    "vit_base_patch32_clip_256": {"gelu": "datacompxl"},
    "vit_base_patch32_clip_384": {"gelu": "laion2b_ft_in12k_in1k openai_ft_in12k_in1k"},
    "vit_base_patch32_clip_448": {"gelu": "laion2b_ft_in12k_in1k"},
    "vit_base_patch16_clip_224": {
        "quick_gelu": f"openai dfn2b {_META}",
        "gelu": f"laion2b laion400m_e32 datacompxl {_TUNED} laion2b_ft_in12k openai_ft_in12k",
    },
    "vit_base_patch16_clip_384": {"gelu": _TUNED},
    "vit_base_patch16_plus_clip_240": {"gelu": "laion400m_e32"},
    "vit_large_patch14_clip_224": {
        "quick_gelu": f"openai dfn2b {_META}",
        "gelu": "laion2b laion400m_e32 datacompxl dfn2b_s39b apple_mclip2_dfndr2b "
        "laion2b_ft_in12k openai_ft_in12k "
        f"{_TUNED}",
    },
    "vit_large_patch14_clip_336": {
        "quick_gelu": "openai",
        "gelu": "laion2b_ft_in12k_in1k laion2b_ft_in1k openai_ft_in12k_in1k",
    },
    "vit_huge_patch14_clip_224": {
        "quick_gelu": "dfn5b metaclip_2pt5b metaclip2_worldwide",
        "gelu": (
            "laion2b laion2b_ft_in12k laion2b_ft_in12k_in1k laion2b_ft_in1k metaclip_altogether"
        ),
    },
    "vit_huge_patch14_clip_336": {"gelu": "laion2b_ft_in12k_in1k laion2b_ft_in1k"},
    "vit_huge_patch14_clip_378": {"quick_gelu": "dfn5b", "gelu": "metaclip2_worldwide"},
    "vit_giant_patch14_clip_224": {"gelu": "laion2b"},
    "vit_gigantic_patch14_clip_224": {
        "quick_gelu": "metaclip_2pt5b",
        "gelu": "laion2b metaclip2_worldwide",
    },
    "vit_gigantic_patch14_clip_378": {"gelu": "metaclip2_worldwide"},
    "vit_xsmall_patch16_clip_224": {"gelu": "tinyclip_yfcc15m"},
    "vit_medium_patch32_clip_224": {"gelu": "tinyclip_laion400m"},
    "vit_medium_patch16_clip_224": {"gelu": "tinyclip_yfcc15m"},
    "vit_betwixt_patch32_clip_224": {"gelu": "tinyclip_laion400m"},
}


@pytest.mark.one_backend
def test_architecture_and_tag_determine_the_gelu():
    known = {
        f"{name}.{tag}": gelu
        for name, gelus in RELEASES.items()
        for gelu in gelus
        for tag in gelus[gelu].split()
    }
    for name, gelu in known.items():
        architecture, tag = name.split(".")
        for config in (
            {"architecture": name},
            {"architecture": architecture, "pretrained_cfg": {"tag": tag}},
        ):
            assert families.clip.read_timm_config(config).mlp == gelu, name
        quick = name.replace("_clip_", "_clip_quickgelu_")
        assert families.clip.read_timm_config({"architecture": quick}).mlp == "quick_gelu"
    for row in families.clip.FAMILY.published:
        assert row.arguments == {"mlp": known[row.name]}
