"""Tests of the table of published weights, and of the naming rule for AugReg files that are not in
the table."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints, families
from keras_vit.checkpoints import published
from keras_vit.checkpoints.registry import find_sizes

from ..shared import GOLDEN, randomize_head
from .helpers import weights_of

pytestmark = pytest.mark.one_backend  # names and tables do not depend on the backend

PUBLISHED = published.published_files()
# A file of AugReg that was trained on ImageNet-21k, and is not in the table.
AUGREG = "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"


@pytest.fixture
def publish_tiny(tmp_path, monkeypatch):
    """Returns a function that publishes a ViT-Ti/16 with five classes as "sam:tiny" in a mirror,
    and returns the model."""

    def publish(representation_size):
        model = keras_vit.ViT_Ti16(
            input_shape=(32, 32, 3), classes=5, representation_size=representation_size
        )
        randomize_head(model)
        (tmp_path / "sam").mkdir()
        checkpoints.save(model, tmp_path / "sam" / "tiny.npz")
        entry = families.PublishedWeights(
            collection="sam",
            name="tiny",
            model="ViT-Ti/16",
            url="gs://vit_models/sam/tiny.npz",
            classes=5,
            resolution=32,
            representation_size=representation_size,
        )
        monkeypatch.setattr(published, "published_files", lambda: [entry])
        monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
        # The name takes precedence over the folder "sam" in the working directory.
        monkeypatch.chdir(tmp_path)
        return model

    return publish


def test_published_files_have_known_models_and_own_urls():
    assert {entry.model for entry in PUBLISHED} <= set(families.sizes())
    assert len({entry.url for entry in PUBLISHED}) == len(PUBLISHED)
    for entry in PUBLISHED:
        assert (entry.representation_size > 0) == (entry.collection == "imagenet21k"), entry
        if entry.url.startswith("https://huggingface.co/"):
            assert entry.url.count("/") == 4, entry
            assert entry.name == entry.url.rpartition("/")[2], entry


def test_files_of_google_have_their_classes_and_preprocessing():
    for entry in PUBLISHED:
        if entry.url.startswith("https://storage.googleapis.com/"):
            classes = (0,) if entry.collection.startswith("siglip") else (1000, 21843)
            assert entry.classes in classes, entry
            assert entry.preprocessing["mean"] == [127.5] * 3, entry


@pytest.mark.parametrize(
    "source, model, url",
    [
        ("imagenet21k", "R50+ViT-B/16", "vit_models/imagenet21k/R50%2BViT-B_16.npz"),
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
        fields = (preprocessing.crop_fraction, preprocessing.resize, preprocessing.interpolation)
        assert fields == (crop_fraction, resize, interpolation), name
        assert preprocessing.library == "torchvision", name
        scaled = np.array([preprocessing.mean, preprocessing.std]) / 255
        np.testing.assert_allclose(scaled, [mean, std], atol=1e-9, err_msg=name)


def test_name_of_an_augreg_file_describes_it(monkeypatch):
    assert published.find_file("augreg", AUGREG).classes == 21843
    assert published.find_file("augreg", AUGREG.replace("i21k", "i1k")).classes == 1000
    name = f"{AUGREG}--cifar100-steps_10k-lr_0.03-res_384"
    entry = published.find(f"augreg:{name}", ["ViT-Ti/16"])
    assert (entry.classes, entry.resolution, entry.representation_size) == (100, 384, 0)
    monkeypatch.setattr(published.downloading, "fetch", lambda url: url)
    resolved = published.resolve(f"augreg:{name}.npz", ["ViT-Ti/16"])
    assert entry.url == f"https://storage.googleapis.com/vit_models/augreg/{name}.npz"
    assert resolved.path == entry.url


@pytest.mark.parametrize(
    "source, model, message",
    [
        (
            "sam",
            "ViT-H/14",
            "published weights of ViT-H/14 are imagenet21k, augreg:<file name>",
        ),
        ("imagenet21k", "other", "published for ViT-B/16, .* but not for this model"),
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


def test_other_arguments_have_no_size():
    assert families.find_size({"depth": None, "width_factor": 1}) is None


def test_published_weights_set_classes_and_pre_logits(publish_tiny):
    source = publish_tiny(representation_size=24)
    model = keras_vit.ViT_Ti16(weights="sam", input_shape=(48, 32, 3))
    assert model.output_shape == (None, 5)
    kernels = (weights_of(each)["pre_logits/kernel"] for each in (model, source))
    np.testing.assert_array_equal(*kernels)
    headless = keras_vit.ViT_Ti16(weights="sam", include_top=False)
    assert headless.output_shape == (None, 24)
    with pytest.raises(ValueError, match="head/kernel"):
        keras_vit.ViT_Ti16(weights="sam", classes=7)


def test_from_pretrained_loads_a_named_file(publish_tiny, tmp_path):
    source = publish_tiny(representation_size=0)
    # A name of AugReg that does not determine the number of classes
    name = f"{AUGREG}--caltech101-steps_10k-lr_0.03-res_32"
    assert published.find_file("augreg", name).classes is None
    (tmp_path / "augreg").mkdir()
    checkpoints.save(source, tmp_path / "augreg" / f"{name}.npz")
    for file in ("sam:tiny", f"augreg:{name}"):
        model = keras_vit.from_pretrained(file)
        assert model.input_shape == (None, 32, 32, 3)
        assert model.output_shape == (None, 5)
    for collection in ("sam", "sam:"):
        with pytest.raises(ValueError, match="one file .*: sam:tiny"):
            keras_vit.from_pretrained(collection)
