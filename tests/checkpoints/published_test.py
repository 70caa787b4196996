"""Tests of the table of published weights, and of the naming rule for AugReg files that are not in
the table."""

import collections
import json

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints, families
from keras_vit.checkpoints import published
from keras_vit.checkpoints.registry import find_sizes

from ..shared import GOLDEN
from .helpers import publish_tiny

pytestmark = pytest.mark.one_backend  # names and tables do not depend on the backend

PUBLISHED = published.published_files()


def test_published_files_have_known_models_and_own_urls():
    assert {entry.model for entry in PUBLISHED} <= set(families.sizes())
    assert len({entry.url for entry in PUBLISHED}) == len(PUBLISHED)


def test_files_of_the_hub_are_named_after_their_repositories():
    for entry in PUBLISHED:
        if entry.url.startswith("https://huggingface.co/"):
            assert entry.url.count("/") == 4, entry
            assert entry.name == entry.url.rpartition("/")[2], entry


def test_other_files_are_npz_files_of_google():
    for entry in PUBLISHED:
        if entry.url.startswith("https://huggingface.co/"):
            continue
        assert entry.url.startswith("https://storage.googleapis.com/"), entry
        assert entry.url.endswith(".npz"), entry
        assert "+" not in entry.url.rpartition("/")[2], entry
        classes = (0,) if entry.collection.startswith("siglip") else (1000, 21843)
        assert entry.classes in classes, entry
        assert entry.preprocessing["mean"] == [127.5] * 3, entry
        if "/vit_models/" in entry.url:
            assert not entry.model.startswith("BiT-"), entry
            assert entry.resolution in (224, 384), entry


def test_collections_have_the_expected_numbers_of_files():
    assert collections.Counter(entry.collection for entry in PUBLISHED) == {
        "imagenet21k": 9,
        "imagenet21k+imagenet2012": 8,
        "sam": 5,
        "augreg": 10,
        "bit_s": 6,
        "flexivit": 15,
        "bit_m": 6,
        "bit_m+imagenet2012": 6,
        "lvd142m": 8,
        "lvd1689m": 6,
        "sat493m": 2,
        "mae": 3,
        "dino": 4,
        "siglip": 9,
        "siglip_i18n": 1,
        "siglip2": 17,
        "openai": 4,
        "laion2b": 6,
        "datacompxl": 4,
        "dfn2b": 2,
        "dfn5b": 2,
        "distilled": 4,
        "deit3": 12,
        "fb_in1k": 8,
        "fb_in22k_ft_in1k": 8,
        "mim_in22k_ft_in1k": 4,
        "mim_in22k_ft_in22k": 2,
        "mim_in22k_ft_in22k_in1k": 2,
        "mim_m38m_ft_in1k": 1,
        "mim_m38m_ft_in22k": 1,
        "mim_m38m_ft_in22k_in1k": 1,
        "dpt": 1,
        "dpt-ade": 1,
        "depth-anything-v2": 3,
        "depth-anything-v2-metric-indoor": 3,
        "depth-anything-v2-metric-outdoor": 3,
    }


def test_only_imagenet21k_has_pre_logits():
    for entry in PUBLISHED:
        assert (entry.representation_size > 0) == (entry.collection == "imagenet21k"), entry


@pytest.mark.parametrize(
    "source, model, url",
    [
        ("imagenet21k", "ViT-B/16", "vit_models/imagenet21k/ViT-B_16.npz"),
        ("imagenet21k", "R50+ViT-B/16", "vit_models/imagenet21k/R50%2BViT-B_16.npz"),
        (
            "augreg",
            "R50+ViT-L/32",
            "vit_models/augreg/R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1.npz",
        ),
        (
            "augreg",
            "R+ViT-Ti/16",
            "vit_models/augreg/R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0.npz",
        ),
        ("bit_m", "BiT-R50x1", "bit_models/BiT-M-R50x1.npz"),
        ("bit:BiT-S-R101x3-ILSVRC2012", "BiT-R101x3", "bit_models/BiT-S-R101x3-ILSVRC2012.npz"),
    ],
)
def test_published_name_resolves_to_a_url(source, model, url):
    assert published.find(source, [model]).url == "https://storage.googleapis.com/" + url


@pytest.mark.parametrize(
    "name, resolution, expected",
    [
        ("", 224, "ViT-B_16-224"),
        ("", 384, "ViT-B_16"),
        ("", 512, "ViT-B_16"),
        (":ViT-B_16-224", 384, "ViT-B_16-224"),  # the name wins
    ],
)
def test_resolution_selects_between_two_files(name, resolution, expected):
    source = f"imagenet21k+imagenet2012{name}"
    assert published.find(source, ["ViT-B/16"], resolution).name == expected


def test_constructor_downloads_the_file_of_the_default_size(monkeypatch):
    fetched = []
    monkeypatch.setattr(published.downloading, "fetch", lambda url: fetched.append(url) or url)
    monkeypatch.setattr(families.vit._size, "constructor", lambda **_: None)
    monkeypatch.setattr("keras_vit.families.registry.check_arguments", lambda *_: None)
    keras_vit.ViT_B16(weights="imagenet21k+imagenet2012")
    assert [url.rpartition("/")[2] for url in fetched] == ["ViT-B_16-224.npz"]


def test_collections_determine_the_preprocessing():
    assert checkpoints.find_preprocessing("siglip2:siglip2_b16_naflex").resize == "naflex"
    assert checkpoints.find_preprocessing("imagenet21k").mean == (127.5,) * 3


@pytest.mark.parametrize(
    "size, mean", [("CLIP-L/14", 127.5), ("CLIP-B/32", 255 * 0.48145466)], ids=["L/14", "B/32"]
)
def test_files_of_a_collection_can_differ_in_preprocessing(size, mean):
    assert checkpoints.find_preprocessing("laion2b") is None
    arguments = families.sizes()[size]
    preprocessing = checkpoints.find_preprocessing("laion2b", (224, 224, 3), **arguments)
    assert preprocessing.mean[0] == mean


def test_timm_files_prepare_images_as_timm():
    published_by_timm = json.loads((GOLDEN / "timm_preprocessing.json").read_text())
    entries = {entry.name: entry for entry in PUBLISHED if "/timm/" in entry.url}
    assert entries.keys() == published_by_timm.keys()
    for name, (crop_fraction, resize, interpolation, mean, std) in published_by_timm.items():
        preprocessing = keras_vit.Preprocessing.from_config(dict(entries[name].preprocessing))
        assert preprocessing.library == "torchvision", name
        assert preprocessing.crop_fraction == crop_fraction, name
        assert preprocessing.resize == resize, name
        assert preprocessing.interpolation == interpolation, name
        scaled = np.array([preprocessing.mean, preprocessing.std]) / 255
        np.testing.assert_allclose(scaled, [mean, std], atol=1e-9, err_msg=name)


# A file of AugReg that was trained on ImageNet-21k, and is not in the table.
AUGREG = "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"


def test_name_of_a_fine_tuned_augreg_file_describes_it():
    name = f"{AUGREG}--cifar100-steps_10k-lr_0.03-res_384"
    entry = published.find(f"augreg:{name}", ["ViT-Ti/16"])
    assert entry.model == "ViT-Ti/16"
    assert entry.classes == 100
    assert entry.resolution == 384
    assert entry.representation_size == 0
    assert entry.url == f"https://storage.googleapis.com/vit_models/augreg/{name}.npz"


@pytest.mark.parametrize("ending", ["", ".npz"])
def test_augreg_name_may_have_its_extension(ending, monkeypatch):
    monkeypatch.setattr(published.downloading, "fetch", lambda url: url)
    resolved = published.resolve(f"augreg:{AUGREG}{ending}", ["ViT-Ti/16"])
    assert resolved.path == f"https://storage.googleapis.com/vit_models/augreg/{AUGREG}.npz"


@pytest.mark.parametrize("dataset, classes", [("i21k", 21843), ("i1k", 1000)])
def test_dataset_of_an_augreg_file_determines_the_classes(dataset, classes):
    name = AUGREG.replace("i21k", dataset)
    assert published.find_file("augreg", name).classes == classes


@pytest.mark.parametrize(
    "source, model, message",
    [
        (
            "sam",
            "ViT-H/14",
            r"published weights of ViT-H/14 are imagenet21k, augreg:<file name>; a path",
        ),
        ("imagenet21k", "other", "published for ViT-B/16, .* but not for this model"),
        ("augreg:B_16-i21k", "ViT-B/16", "must follow the rule {model}-{ds}"),
        (
            "augreg:X_16-i1k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0",
            "ViT-B/16",
            "must follow the rule",
        ),
        (
            "augreg:S_16-i1k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0",
            "ViT-B/16",
            "contains a ViT-S/16",
        ),
        ("imagenet21k:ViT-B_7", "ViT-B/16", "must be one of ViT-B_16, ViT-B_32"),
    ],
)
def test_find_rejects_unknown_and_mismatched_names(source, model, message):
    with pytest.raises(ValueError, match=message):
        published.find(source, [model])


def test_unknown_weights_error_lists_names_for_the_model():
    model = keras_vit.ViT_Ti16(classes=3)
    with pytest.raises(ValueError, match=r"ViT-Ti/16 are augreg, augreg:<file name>"):
        checkpoints.load(model, "imagenet22k")


def test_folder_does_not_shadow_published_weights(tmp_path, monkeypatch):
    (tmp_path / "sam").mkdir()
    monkeypatch.chdir(tmp_path)
    size = {"patch_size": 16, "num_layers": 12, "hidden_size": 768, "resnet_blocks": None}
    assert checkpoints.find_published("sam", (224, 224, 3), **size).name == "ViT-B_16"


@pytest.mark.parametrize("name", families.sizes())
def test_sizes_are_found_by_their_arguments(name):
    size = families.sizes()[name]
    assert name in find_sizes(size)
    # Sizes of MAE and DINO have the same arguments as sizes of ViT.
    if not name.startswith(("MAE", "DINO-")):
        assert families.find_size(size) == name
    if "resnet_blocks" in size:  # configs may contain lists instead of tuples
        blocks = list(size["resnet_blocks"])
        assert families.find_size({**size, "resnet_blocks": blocks}) == name


@pytest.mark.parametrize(
    "arguments",
    [
        {"depth": None, "width_factor": 1},
        {"patch_size": 8, "num_layers": 2, "hidden_size": 64},
    ],
)
def test_other_arguments_have_no_size(arguments):
    assert families.find_size(arguments) is None


def test_published_weights_set_classes_and_pre_logits(tmp_path, monkeypatch):
    source = publish_tiny(tmp_path, monkeypatch, representation_size=24)
    model = keras_vit.ViT_Ti16(weights="sam", input_shape=(48, 32, 3))
    assert model.output_shape == (None, 5)
    np.testing.assert_array_equal(
        np.asarray(model.get_layer("pre_logits").kernel),
        np.asarray(source.get_layer("pre_logits").kernel),
    )
    headless = keras_vit.ViT_Ti16(weights="sam", include_top=False)
    assert headless.output_shape == (None, 24)
    with pytest.raises(ValueError, match="Received: shape=.*5"):
        keras_vit.ViT_Ti16(weights="sam", classes=7)


def test_from_pretrained_requires_the_name_of_a_file(tmp_path, monkeypatch):
    publish_tiny(tmp_path, monkeypatch)
    model = keras_vit.from_pretrained("sam:tiny")
    assert model.input_shape == (None, 32, 32, 3)
    assert model.output_shape == (None, 5)
    with pytest.raises(ValueError, match="one file .*: sam:tiny.*Received: source='sam'"):
        keras_vit.from_pretrained("sam")


def test_file_determines_an_unknown_number_of_classes(tmp_path, monkeypatch):
    name = f"{AUGREG}--caltech101-steps_10k-lr_0.03-res_32"
    assert published.find_file("augreg", name).classes is None
    source = publish_tiny(tmp_path, monkeypatch)
    (tmp_path / "augreg").mkdir()
    checkpoints.save(source, tmp_path / "augreg" / f"{name}.npz")
    model = keras_vit.from_pretrained(f"augreg:{name}")
    assert model.input_shape == (None, 32, 32, 3)
    assert model.output_shape == (None, 5)
