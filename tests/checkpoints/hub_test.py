"""Tests of loading models from repositories of the Hugging Face Hub."""

import json
import shutil
import sys
import types

import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_vit
from keras_vit import checkpoints, families
from keras_vit.checkpoints import published
from keras_vit.families.shared import timm_row

from ..families.golden_cases import read_case, read_outputs, write_case
from ..shared import GOLDEN, GOLDEN_SIZES

pytestmark = pytest.mark.one_backend

TINY = {
    "patch_size": 7,
    "num_layers": 3,
    "hidden_size": 24,
    "mlp_dim": 96,
    "num_heads": 3,
    "layer_scale": 1e-5,
    "exact_gelu": True,
    "input_shape": (42, 42, 3),
}


class HubErrors:
    """The errors of huggingface_hub, which need not be installed."""

    class HfHubHTTPError(OSError):
        pass

    class RepositoryNotFoundError(HfHubHTTPError):
        pass

    class GatedRepoError(RepositoryNotFoundError):
        pass

    class EntryNotFoundError(Exception):
        pass

    class LocalEntryNotFoundError(FileNotFoundError, EntryNotFoundError):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Replaces huggingface_hub with a fake that reads local folders.

    `hub.requests` lists the names of the requested files. If `hub.error` is set, all downloads
    raise it. Downloads of `hub.unreachable`, a file name, fail as they do offline.
    """
    hub = types.SimpleNamespace(folder=tmp_path / "hub", requests=[], error=None, unreachable=None)

    def hf_hub_download(repository, name):
        hub.requests.append(name)
        if hub.error is not None:
            raise hub.error
        if name == hub.unreachable:
            raise HubErrors.LocalEntryNotFoundError("offline")
        path = hub.folder / repository / name
        if not path.exists():
            raise HubErrors.EntryNotFoundError(f"404: {name}")
        return str(path)

    module = types.SimpleNamespace(hf_hub_download=hf_hub_download, errors=HubErrors)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.delenv("KERAS_VIT_WEIGHTS", raising=False)
    return hub


@pytest.fixture
def create_repository(hub):
    """Returns a function that creates a repository from a golden file, and returns its folder."""

    def create(name, case, parent=hub.folder, config=None):
        folder = parent / name
        folder.parent.mkdir(parents=True)
        return write_case(case, folder, config=config)

    return create


def assert_matches_reference(model, case):
    reference = read_outputs(case)
    features = keras_vit.features(model, reference["images"])
    np.testing.assert_allclose(features, reference["pooler_output"], atol=1e-4)


def write_index(folder, shards):
    """Writes the index of sharded weights. `shards` maps names of arrays to files."""
    index = json.dumps({"weight_map": shards})
    (folder / "model.safetensors.index.json").write_text(index)


@pytest.fixture
def published_repository(create_repository, monkeypatch):
    """Publishes the weights of a tiny DINOv2 in a repository, and returns its folder."""
    monkeypatch.setitem(families.dinov2.FAMILY.sizes, "DINOv2-Tiny/7", TINY)
    url = "https://huggingface.co/facebook/tiny"
    entry = families.PublishedWeights("lvd142m", "tiny", "DINOv2-Tiny/7", url, 0)
    monkeypatch.setattr(published, "published_files", lambda: [entry])
    return create_repository("facebook/tiny", "dinov2")


def test_loads_hugging_face_repository(create_repository):
    folder = create_repository("someone/dinov2", "dinov2")
    (folder / "preprocessor_config.json").write_text('{"image_mean": 0.4, "image_std": 0.2}')
    model = keras_vit.from_pretrained("someone/dinov2")
    assert_matches_reference(model, "dinov2")
    np.testing.assert_allclose(model.preprocessing.mean, 102)
    assert model.preprocessing.interpolation == "bicubic"  # that of the family
    assert checkpoints.find_preprocessing("someone/dinov2") == model.preprocessing


def test_timm_repository_sets_preprocessing(create_repository):
    name = "timm/vit_giant_patch14_dinov2.lvd142m"
    fields = {
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "interpolation": "bilinear",
        "crop_pct": 0.9,
        "crop_mode": "squash",
    }
    config = {"architecture": "vit_giant_patch14_dinov2", "pretrained_cfg": fields}
    create_repository(name, "timm_dinov2_swiglu", config=config)
    preprocessing = keras_vit.from_pretrained(name, num_heads=3).preprocessing
    assert preprocessing.mean == (127.5,) * 3
    assert preprocessing.std == (63.75,) * 3
    assert (preprocessing.resize, preprocessing.crop_fraction) == ("stretch", 0.9)
    assert preprocessing.interpolation == "bilinear"


@pytest.mark.parametrize("unreachable", [None, "model.safetensors"], ids=["online", "offline"])
def test_loads_sharded_weights(unreachable, hub, create_repository):
    hub.unreachable = unreachable
    folder = create_repository("someone/large", "dinov3")
    (folder / "model.safetensors").unlink()
    arrays = read_case("dinov3")
    names = sorted(arrays)
    shards = {}
    for number in (0, 1):
        shard = f"model-{number}.safetensors"
        shards |= dict.fromkeys(names[number::2], shard)
        save_file({name: arrays[name] for name in names[number::2]}, folder / shard)
    write_index(folder, shards)
    assert_matches_reference(keras_vit.from_pretrained("someone/large"), "dinov3")


def test_rejects_an_array_in_two_shards(create_repository):
    folder = create_repository("someone/large", "dinov3")
    (folder / "model.safetensors").rename(folder / "1.safetensors")
    shutil.copy(folder / "1.safetensors", folder / "2.safetensors")
    write_index(folder, {"a": "1.safetensors", "b": "2.safetensors"})
    with pytest.raises(ValueError, match="must be in one of its files.*2.safetensors"):
        keras_vit.from_pretrained("someone/large")


def test_rejects_shards_in_other_folders(create_repository):
    folder = create_repository("someone/large", "dinov3")
    (folder / "model.safetensors").unlink()
    write_index(folder, {"a": "../model.safetensors"})
    with pytest.raises(ValueError, match="lists files in other folders"):
        keras_vit.from_pretrained("someone/large")


def test_model_safetensors_takes_precedence(create_repository):
    folder = create_repository("a/b", "dinov2")
    shutil.copy(folder / "model.safetensors", folder / "open_clip_model.safetensors")
    write_index(folder, {"a": "missing.safetensors"})
    assert keras_vit.from_pretrained("a/b").input_shape == (None, 42, 42, 3)


@pytest.mark.parametrize("source", ["lvd142m", "lvd142m:tiny", "facebook/tiny"])
def test_constructor_loads_a_repository(source, published_repository):
    model = keras_vit.VisionTransformer(**TINY, weights=source)
    assert model.output_shape == (None, 24)
    assert model.preprocessing.crop_fraction == 224 / 256
    assert_matches_reference(model, "dinov2")


def test_published_preprocessing_replaces_missing_json_files(hub, monkeypatch):
    folder = hub.folder / "timm" / "tiny"
    folder.mkdir(parents=True)
    shutil.copy(GOLDEN / "timm_token.safetensors", folder / "model.safetensors")
    size = {**GOLDEN_SIZES, "exact_gelu": True, "input_shape": (32, 32, 3)}
    monkeypatch.setitem(families.vit.FAMILY.sizes, "Tiny", size)
    entry = timm_row("tiny", "tiny", "Tiny", 10, 32)
    monkeypatch.setattr(published, "published_files", lambda: [entry])
    model = keras_vit.VisionTransformer(**size, weights="timm/tiny")
    assert model.preprocessing.crop_fraction == 0.9
    assert checkpoints.find_preprocessing("timm/tiny", **size) == model.preprocessing


def test_mirror_takes_precedence_over_the_hub(hub, create_repository, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "mirror"))
    create_repository("facebook/tiny", "dinov2", parent=tmp_path / "mirror" / "huggingface.co")
    assert keras_vit.from_pretrained("facebook/tiny").input_shape == (None, 42, 42, 3)
    assert not hub.requests


@pytest.mark.parametrize(
    "error, kind, message",
    [
        (HubErrors.GatedRepoError("401"), ValueError, "gated.* https://huggingface.co/a/b"),
        (HubErrors.RepositoryNotFoundError("404"), ValueError, "does not exist or is private"),
        (HubErrors.EntryNotFoundError("404"), ValueError, "no model.safetensors"),
        (
            HubErrors.LocalEntryNotFoundError("offline\nmore"),
            ConnectionError,
            r"downloaded \(offline\)",
        ),
        (TimeoutError(), ConnectionError, r"downloaded \(TimeoutError\)"),
    ],
)
def test_hub_failures_raise_one_line_errors(error, kind, message, hub):
    hub.error = error
    with pytest.raises(kind, match=message) as raised:
        keras_vit.from_pretrained("a/b")
    assert "\n" not in str(raised.value)


def test_missing_hub_package_error_names_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r'pip install "keras_vit\[hub\]"'):
        keras_vit.from_pretrained("facebook/dinov2-base")


def test_preprocessor_config_is_optional_offline(hub, create_repository):
    create_repository("a/b", "dinov2")
    hub.unreachable = "preprocessor_config.json"
    assert keras_vit.from_pretrained("a/b").preprocessing.crop_fraction == 224 / 256
