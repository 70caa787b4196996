"""Tests of loading models from repositories of the Hugging Face Hub."""

import json
import shutil
import sys
import types

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import checkpoints, families
from keras_vit.checkpoints import published

from ..shared import FAMILY_FILES

pytestmark = pytest.mark.one_backend


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
    """Replaces huggingface_hub with a fake that reads local folders. Downloads raise `hub.error` if
    set."""
    module = types.ModuleType("huggingface_hub")
    module.errors = types.ModuleType("huggingface_hub.errors")
    for error in (
        HfHubHTTPError,
        RepositoryNotFoundError,
        GatedRepoError,
        EntryNotFoundError,
        LocalEntryNotFoundError,
    ):
        setattr(module.errors, error.__name__, error)
    module.folder = tmp_path / "hub"
    module.error = None
    module.asked = []

    def hf_hub_download(repository, name):
        module.asked.append(name)
        if module.error is not None:
            raise module.error
        if not (module.folder / repository / name).exists():
            raise EntryNotFoundError(f"404: {name}")
        return str(module.folder / repository / name)

    module.hf_hub_download = hf_hub_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", module.errors)
    monkeypatch.delenv("KERAS_VIT_WEIGHTS", raising=False)
    return module


@pytest.fixture
def repository(hub):
    """Returns a function that creates a repository from a golden file."""

    def make(name, case, folder=hub.folder, **configs):
        path = folder / name
        path.mkdir(parents=True)
        shutil.copy(FAMILY_FILES / f"{case}.safetensors", path / "model.safetensors")
        if (FAMILY_FILES / f"{case}.config.json").exists():
            shutil.copy(FAMILY_FILES / f"{case}.config.json", path / "config.json")
        for config, value in configs.items():
            (path / f"{config}.json").write_text(json.dumps(value))
        return path

    return make


def test_loads_hugging_face_repository(hub, repository):
    processor = {
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "size": {"shortest_edge": 320},
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.2, 0.2],
        "resample": 3,
    }
    repository("someone/dinov2", "dinov2", preprocessor_config=processor)
    model = keras_vit.from_pretrained("someone/dinov2")
    with np.load(FAMILY_FILES / "dinov2.io.npz") as io:
        np.testing.assert_allclose(
            keras_vit.features(model, io["images"]), io["pooler_output"], atol=1e-4
        )
    preprocessing = model.preprocessing
    np.testing.assert_allclose(preprocessing.mean, (102, 127.5, 153))
    assert (preprocessing.resize, preprocessing.crop_fraction) == ("shorter_side", 0.7)
    assert preprocessing.interpolation == "bicubic"
    assert checkpoints.find_preprocessing("someone/dinov2") == preprocessing


def test_timm_repository_sets_preprocessing(hub, repository):
    cfg = {
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "interpolation": "bilinear",
        "crop_pct": 0.9,
        "crop_mode": "squash",
    }
    config = {"architecture": "vit_giant_patch14_dinov2", "pretrained_cfg": cfg}
    repository("timm/vit_giant_patch14_dinov2.lvd142m", "timm_dinov2_swiglu", config=config)
    model = keras_vit.from_pretrained("timm/vit_giant_patch14_dinov2.lvd142m", num_heads=3)
    preprocessing = model.preprocessing
    assert preprocessing.mean == (127.5,) * 3 and preprocessing.std == (63.75,) * 3
    assert (preprocessing.resize, preprocessing.crop_fraction) == ("stretch", 0.9)
    assert preprocessing.interpolation == "bilinear"


def test_loads_sharded_weights(hub, repository):
    path = repository("someone/large", "dinov3")
    arrays = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(arrays)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: arrays[name] for name in part}, path / f"model-{number}.safetensors")
    where = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    model = keras_vit.from_pretrained("someone/large")
    with np.load(FAMILY_FILES / "dinov3.io.npz") as io:
        np.testing.assert_allclose(
            keras_vit.features(model, io["images"]), io["pooler_output"], atol=1e-4
        )
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../model.safetensors"}})
    )
    with pytest.raises(ValueError, match="lists files in other folders"):
        keras_vit.from_pretrained("someone/large")


def test_model_safetensors_takes_precedence(hub, repository):
    path = repository("a/b", "dinov2")
    shutil.copy(path / "model.safetensors", path / "open_clip_model.safetensors")
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "missing.safetensors"}})
    )
    for source in ("a/b", path):
        assert keras_vit.from_pretrained(source).input_shape == (None, 42, 42, 3)


def test_collection_name_resolves_to_a_repository(hub, repository, monkeypatch):
    repository("facebook/tiny", "dinov2", folder=hub.folder)
    size = {
        "patch_size": 7,
        "num_layers": 3,
        "hidden_size": 24,
        "mlp_dim": 96,
        "num_heads": 3,
        "layer_scale": 1e-5,
    }
    size |= {"exact_gelu": True, "input_shape": (42, 42, 3)}
    monkeypatch.setitem(families.dinov2.FAMILY.sizes, "DINOv2-Tiny/7", size)
    row = families.PublishedWeights(
        "lvd142m", "tiny", "DINOv2-Tiny/7", "https://huggingface.co/facebook/tiny", 0
    )
    monkeypatch.setattr(published, "rows", lambda: [row])
    with np.load(FAMILY_FILES / "dinov2.io.npz") as io:
        for source in ("lvd142m", "lvd142m:tiny", "facebook/tiny"):
            model = keras_vit.VisionTransformer(**size, weights=source)
            assert model.output_shape == (None, 24)
            np.testing.assert_allclose(
                keras_vit.features(model, io["images"]), io["pooler_output"], atol=1e-4
            )
    assert keras_vit.from_pretrained("lvd142m:tiny").output_shape == (None, 24)
    assert model.preprocessing.crop_fraction == 224 / 256
    build = families.dinov2._size("DINOv2-Tiny/7", "tiny", **size)
    assert build(weights=hub.folder / "facebook" / "tiny").output_shape == (None, 24)
    with pytest.raises(ValueError, match="2 missing .*head/bias.*include_top=False"):
        keras_vit.VisionTransformer(**size, weights="lvd142m", classes=5)
    model = keras_vit.from_pretrained("facebook/tiny", include_top=True, classes=5, head="new")
    assert model.output_shape == (None, 5)


def test_mirror_takes_precedence_over_the_hub(hub, repository, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "mirror"))
    repository("facebook/tiny", "dinov2", folder=tmp_path / "mirror" / "huggingface.co")
    assert keras_vit.from_pretrained("facebook/tiny").input_shape == (None, 42, 42, 3)
    assert not hub.asked


@pytest.mark.parametrize(
    "error, kind, message",
    [
        (
            GatedRepoError("401"),
            ValueError,
            "gated. Accept its license at https://huggingface.co/a/b, then set HF_TOKEN",
        ),
        (
            RepositoryNotFoundError("404"),
            ValueError,
            "https://huggingface.co/a/b does not exist or is private",
        ),
        (
            EntryNotFoundError("404"),
            ValueError,
            "no model.safetensors; pickled PyTorch files are not supported",
        ),
        (
            LocalEntryNotFoundError("offline\nmore"),
            ConnectionError,
            r"downloaded \(offline\)\. .*copy the model's model.safet",
        ),
        (HfHubHTTPError("500"), ConnectionError, r"downloaded \(500\)"),
        (TimeoutError(), ConnectionError, r"downloaded \(TimeoutError\)"),
    ],
)
def test_hub_failures_raise_one_line_errors(error, kind, message, hub):
    hub.error = error
    with pytest.raises(kind, match=message) as raised:
        keras_vit.from_pretrained("a/b")
    assert str(raised.value).endswith("Received: a/b") and "\n" not in str(raised.value)


def test_missing_hub_package_error_names_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r'pip install "keras_vit\[hub\]"'):
        keras_vit.from_pretrained("facebook/dinov2-base")


def test_preprocessor_config_is_optional_offline(hub, repository):
    repository("a/b", "dinov2")
    download = hub.hf_hub_download

    def offline(repository, name, **options):
        if name == "preprocessor_config.json":
            raise LocalEntryNotFoundError("offline")
        return download(repository, name, **options)

    hub.hf_hub_download = offline
    assert keras_vit.from_pretrained("a/b").preprocessing.crop_fraction == 224 / 256
