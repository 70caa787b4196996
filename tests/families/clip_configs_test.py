"""Tests of the activation of CLIP models, which depends on the release, and of the configs of
open_clip."""

import json

import pytest

import keras_vit
from keras_vit import families

from .golden_cases import write_case

pytestmark = pytest.mark.one_backend


def test_clip_weights_of_unknown_source_require_mlp(tmp_path):
    folder = write_case("timm_clip", tmp_path)
    with pytest.raises(ValueError, match="`mlp` is required"):
        keras_vit.from_pretrained(folder, num_heads=3)


@pytest.mark.parametrize("weights, mlp", [("laion2b", "gelu"), ("openai", "quick_gelu")])
def test_published_weights_set_the_activation(weights, mlp, monkeypatch):
    built = {}
    monkeypatch.setattr(
        families.clip._size, "constructor", lambda **arguments: built.update(arguments)
    )
    monkeypatch.setattr("keras_vit.families.registry.check_arguments", lambda *_: None)
    monkeypatch.setattr("keras_vit.checkpoints.published.resolve", lambda *_: None)
    families.CLIP_B32(weights=weights)
    assert built["mlp"] == mlp


# The tags of every CLIP release of timm 1.0.31, by architecture and activation. timm marks the
# releases that were trained with QuickGELU, except `dfn2b` of ViT-B/16, which open_clip marks.
METACLIP = "metaclip_2pt5b metaclip_400m"
FINE_TUNED = "laion2b_ft_in12k_in1k laion2b_ft_in1k openai_ft_in12k_in1k openai_ft_in1k"
RELEASES = {
    "vit_base_patch32_clip_224": {
        "quick_gelu": f"openai laion400m_e31 laion400m_e32 {METACLIP}",
        "gelu": f"laion2b datacompxl {FINE_TUNED}",
    },
    "vit_base_patch32_clip_256": {"gelu": "datacompxl"},
    "vit_base_patch32_clip_384": {"gelu": "laion2b_ft_in12k_in1k openai_ft_in12k_in1k"},
    "vit_base_patch32_clip_448": {"gelu": "laion2b_ft_in12k_in1k"},
    "vit_base_patch16_clip_224": {
        "quick_gelu": f"openai dfn2b {METACLIP}",
        "gelu": f"laion2b laion400m_e32 datacompxl {FINE_TUNED} laion2b_ft_in12k openai_ft_in12k",
    },
    "vit_base_patch16_clip_384": {"gelu": FINE_TUNED},
    "vit_base_patch16_plus_clip_240": {"gelu": "laion400m_e32"},
    "vit_large_patch14_clip_224": {
        "quick_gelu": f"openai dfn2b {METACLIP}",
        "gelu": "laion2b laion400m_e32 datacompxl dfn2b_s39b apple_mclip2_dfndr2b "
        f"laion2b_ft_in12k openai_ft_in12k {FINE_TUNED}",
    },
    "vit_large_patch14_clip_336": {
        "quick_gelu": "openai",
        "gelu": "laion2b_ft_in12k_in1k laion2b_ft_in1k openai_ft_in12k_in1k",
    },
    "vit_huge_patch14_clip_224": {
        "quick_gelu": "dfn5b metaclip_2pt5b metaclip2_worldwide",
        "gelu": "laion2b laion2b_ft_in12k laion2b_ft_in12k_in1k laion2b_ft_in1k "
        "metaclip_altogether",
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


def released_activations(architecture):
    """Returns the activation of each release of an architecture, by its tag."""
    activations = {}
    for activation, tags in RELEASES[architecture].items():
        activations |= dict.fromkeys(tags.split(), activation)
    return activations


@pytest.mark.parametrize("architecture", RELEASES)
def test_architecture_and_tag_determine_the_activation(architecture):
    for tag, activation in released_activations(architecture).items():
        joined = {"architecture": f"{architecture}.{tag}"}
        separate = {"architecture": architecture, "pretrained_cfg": {"tag": tag}}
        assert families.clip.read_timm_config(joined).mlp == activation, tag
        assert families.clip.read_timm_config(separate).mlp == activation, tag
        quick = {"architecture": joined["architecture"].replace("_clip_", "_clip_quickgelu_")}
        assert families.clip.read_timm_config(quick).mlp == "quick_gelu", tag


def test_published_files_have_the_released_activations():
    for row in families.clip.FAMILY.published:
        architecture, tag = row.name.split(".")
        assert row.arguments == {"mlp": released_activations(architecture)[tag]}, row.name


@pytest.mark.parametrize(
    "change, message",
    [
        ({"attentional_pool": True}, "attentional_pool=True"),
        ({"pool_type": "none"}, "pool_type='none'"),
        ({"norm_kwargs": {"eps": 1e-3, "bias": False}}, "norm_kwargs="),
    ],
)
def test_rejects_unsupported_open_clip_config(change, message, tmp_path):
    path = write_case("clipa", tmp_path) / "open_clip_config.json"
    config = json.loads(path.read_text())
    config["model_cfg"]["vision_cfg"].update(change)
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"not supported: {message}"):
        keras_vit.from_pretrained(tmp_path)


def test_open_clip_weights_require_their_config(tmp_path):
    (write_case("clipa", tmp_path) / "open_clip_config.json").unlink()
    with pytest.raises(ValueError, match="open_clip_config.json .* is missing"):
        keras_vit.from_pretrained(tmp_path)
