"""Tests of the table of published weights, and of the naming rule for AugReg files that are not in
the table."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints, families
from keras_vit.checkpoints import published
from keras_vit.checkpoints.registry import find_sizes

from ..shared import GOLDEN

pytestmark = pytest.mark.one_backend  # names and tables do not depend on the backend

PUBLISHED = published.rows()


def test_published_rows_are_consistent():
    assert len({row.url for row in PUBLISHED}) == len(PUBLISHED)
    for row in PUBLISHED:
        assert row.model in families.sizes()
        if row.url.startswith("https://huggingface.co/"):
            assert row.url.count("/") == 4 and row.name == row.url.rpartition("/")[2]
            continue
        assert row.url.startswith("https://storage.googleapis.com/")
        assert row.url.endswith(".npz")
        assert "+" not in row.url.rpartition("/")[2]
        assert row.classes in ((0,) if row.collection.startswith("siglip") else (1000, 21843))
        assert row.preprocessing["mean"] == [127.5] * 3
        if "/vit_models/" in row.url:
            assert not row.model.startswith("BiT-") and row.resolution in (224, 384)


def test_collections_have_the_expected_numbers_of_files():
    count = {
        name: sum(row.collection == name for row in PUBLISHED)
        for name in {r.collection for r in PUBLISHED}
    }
    assert count == {
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
    assert {
        row.representation_size > 0 for row in PUBLISHED if row.collection == "imagenet21k"
    } == {True}
    assert {row.representation_size for row in PUBLISHED if row.collection != "imagenet21k"} == {0}


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
    assert published.find(source, model).url == "https://storage.googleapis.com/" + url


def test_resolution_selects_between_two_files():
    collection = "imagenet21k+imagenet2012"
    assert published.find(collection, "ViT-B/16", 224).name == "ViT-B_16-224"
    assert published.find(collection, "ViT-B/16", 384).name == "ViT-B_16"
    assert published.find(collection, "ViT-B/16", 512).name == "ViT-B_16"
    assert published.find(collection + ":ViT-B_16-224", "ViT-B/16", 384).name == "ViT-B_16-224"


def test_constructor_downloads_the_file_of_the_default_size(monkeypatch):
    fetched = []
    monkeypatch.setattr(published.downloading, "fetch", lambda url: fetched.append(url) or url)
    monkeypatch.setattr(families.vit._size, "constructor", lambda **_: None)
    monkeypatch.setattr("keras_vit.families.registry.check_arguments", lambda *_: None)
    keras_vit.ViT_B16(weights="imagenet21k+imagenet2012")
    assert [url.rpartition("/")[2] for url in fetched] == ["ViT-B_16-224.npz"]


def test_preprocessing_depends_on_the_published_file():
    assert checkpoints.find_preprocessing("siglip2:siglip2_b16_naflex").resize == "naflex"
    assert checkpoints.find_preprocessing("imagenet21k").mean == (127.5,) * 3
    assert checkpoints.find_preprocessing("laion2b") is None  # the files differ
    for size, mean in (("CLIP-L/14", 127.5), ("CLIP-B/32", 255 * 0.48145466)):
        found = checkpoints.find_preprocessing("laion2b", (224, 224, 3), **families.sizes()[size])
        assert found.mean[0] == mean


def test_timm_rows_prepare_images_as_timm():
    published_by_timm = json.loads((GOLDEN / "timm_preprocessing.json").read_text())
    rows = {row.name: row for row in PUBLISHED if "/timm/" in row.url}
    assert rows.keys() == published_by_timm.keys()
    for name, expected in published_by_timm.items():
        found = keras_vit.Preprocessing.from_config(dict(rows[name].preprocessing))
        assert found.library == "torchvision"
        assert [found.crop_fraction, found.resize, found.interpolation] == expected[:3], name
        np.testing.assert_allclose(
            np.array(found.mean + found.std) / 255, expected[3] + expected[4], atol=1e-9
        )


def test_augreg_name_describes_the_file():
    start = "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
    name = f"{start}--cifar100-steps_10k-lr_0.03-res_384"
    row = published.find(f"augreg:{name}.npz", "ViT-Ti/16")
    assert (row.model, row.classes, row.resolution, row.representation_size) == (
        "ViT-Ti/16",
        100,
        384,
        0,
    )
    assert row.url == f"https://storage.googleapis.com/vit_models/augreg/{name}.npz"
    assert published.find_file("augreg", name.partition("--")[0]).classes == 21843
    assert (
        published.find_file("augreg", name.partition("--")[0].replace("i21k", "i1k")).classes
        == 1000
    )


@pytest.mark.parametrize(
    "source, model, message",
    [
        (
            "sam",
            "ViT-H/14",
            r"published weights of ViT-H/14 are imagenet21k, augreg:<file name>; a path",
        ),
        ("imagenet21k", None, "published for ViT-B/16, .* but not for this model"),
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
        published.find(source, model)


def test_unknown_weights_error_lists_names_for_the_model():
    model = keras_vit.ViT_Ti16(classes=3)
    with pytest.raises(ValueError, match=r"ViT-Ti/16 are augreg, augreg:<file name>"):
        checkpoints.load(model, "imagenet22k")


def test_folder_does_not_shadow_published_weights(tmp_path, monkeypatch):
    (tmp_path / "sam").mkdir()
    monkeypatch.chdir(tmp_path)
    numbers = {"patch_size": 16, "num_layers": 12, "hidden_size": 768, "resnet_blocks": None}
    assert checkpoints.find_published("sam", (224, 224, 3), **numbers).name == "ViT-B_16"


def test_sizes_are_found_by_their_arguments():
    for name, size in families.sizes().items():
        assert name in find_sizes(size)
        # Sizes of MAE and DINO have the same arguments as sizes of ViT.
        assert families.find_size(size) == name or name.startswith(("MAE", "DINO-"))
        if "resnet_blocks" in size:  # configs may contain lists instead of tuples
            assert (
                families.find_size({**size, "resnet_blocks": list(size["resnet_blocks"])}) == name
            )
    assert families.find_size({"depth": None, "width_factor": 1}) is None
    assert families.find_size({"patch_size": 8, "num_layers": 2, "hidden_size": 64}) is None


def test_published_weights_set_classes_and_pre_logits(tmp_path, monkeypatch):
    row = families.PublishedWeights(
        "sam", "tiny", "ViT-Ti/16", "gs://vit_models/sam/tiny.npz", 5, 32, 24
    )
    monkeypatch.setattr(published, "rows", lambda: [row])
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    (tmp_path / "sam").mkdir()
    source = keras_vit.ViT_Ti16(input_shape=(32, 32, 3), classes=5, representation_size=24)
    source.get_layer("head").kernel.assign(np.ones((24, 5)))
    checkpoints.save(source, tmp_path / "sam" / "tiny.npz")
    model = keras_vit.ViT_Ti16(weights="sam", input_shape=(48, 32, 3))
    assert model.output_shape == (None, 5)
    np.testing.assert_array_equal(
        np.asarray(model.get_layer("pre_logits").kernel),
        np.asarray(source.get_layer("pre_logits").kernel),
    )
    features = keras_vit.ViT_Ti16(weights="sam", include_top=False)
    assert features.output_shape == (None, 24)
    with pytest.raises(ValueError, match="Received: shape=.*5"):
        keras_vit.ViT_Ti16(weights="sam", classes=7)


def test_file_determines_an_unknown_number_of_classes(tmp_path, monkeypatch):
    start = "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
    name = f"{start}--caltech101-steps_10k-lr_0.03-res_32"
    assert published.find_file("augreg", name).classes is None
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    (tmp_path / "augreg").mkdir()
    source = keras_vit.ViT_Ti16(input_shape=(32, 32, 3), classes=5, head_bias=1.0)
    source.get_layer("head").kernel.assign(np.ones((192, 5)))
    checkpoints.save(source, tmp_path / "augreg" / f"{name}.npz")
    model = keras_vit.from_pretrained(f"augreg:{name}")
    assert model.input_shape == (None, 32, 32, 3) and model.output_shape == (None, 5)
