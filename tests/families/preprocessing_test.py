"""Tests that the configs next to the weights, or else the family, determine the preprocessing."""

import json

import numpy as np
import pytest

import keras_vit

from .golden_cases import write_case

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize(
    "case, mean, resize",
    [
        ("clip", 122.77, "shorter_side"),
        ("siglip", 127.5, "stretch"),
        ("dinov2", 123.67, "shorter_side"),
        ("timm_deit3", 123.67, "shorter_side"),
        ("timm_eva02_separate", 122.77, "shorter_side"),
    ],
)
def test_family_determines_preprocessing(case, mean, resize, tmp_path):
    folder = write_case(case, tmp_path)
    model = keras_vit.from_pretrained(folder, num_heads=3)
    assert model.preprocessing.mean[0] == pytest.approx(mean, abs=0.01)
    assert model.preprocessing.resize == resize


@pytest.fixture
def preprocessing_of(tmp_path):
    """Returns a function that loads a SigLIP model next to a preprocessor_config.json with changed
    fields, and returns its preprocessing."""

    def load(**changes):
        config = {
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
            "size": {"height": 16, "width": 16},
            "resample": 3,
        }
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({**config, **changes}))
        return keras_vit.from_pretrained(write_case("siglip", tmp_path)).preprocessing

    return load


@pytest.mark.parametrize(
    "changes, expected",
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
            {"resize": "stretch"},
        ),
        (
            {"size": 20, "crop_size": 15, "feature_extractor_type": "CLIPFeatureExtractor"},
            {"resize": "shorter_side"},
        ),
    ],
)
def test_preprocessor_config_sets_preprocessing(changes, expected, preprocessing_of):
    preprocessing = preprocessing_of(**changes)
    assert preprocessing.interpolation == "bicubic"
    for name, value in expected.items():
        np.testing.assert_equal(getattr(preprocessing, name), value)


@pytest.mark.parametrize("field, value", [("resample", 1), ("do_resize", False)])
def test_unsupported_value_in_preprocessor_config_causes_a_warning(field, value, preprocessing_of):
    with pytest.warns(UserWarning, match=f"Ignored {field}={value} in preprocessor_config.json"):
        preprocessing_of(**{field: value})


@pytest.mark.parametrize("changes", [{"image_std": [0, 0, 0]}, {"image_mean": "x"}], ids=str)
def test_rejects_invalid_preprocessor_config(changes, preprocessing_of):
    with pytest.raises(ValueError, match="The preprocessor_config.json .* is invalid"):
        preprocessing_of(**changes)


@pytest.fixture
def write_processor_config(tmp_path):
    """Returns a function that writes fields to a processor_config.json."""

    def write(**fields):
        (tmp_path / "processor_config.json").write_text(json.dumps(fields))

    return write


def test_processor_config_takes_precedence(preprocessing_of, write_processor_config):
    write_processor_config(
        image_processor={
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 20},
            "crop_size": {"height": 15},
            "image_mean": [0.25] * 3,
            "image_std": [0.5] * 3,
            "resample": 3,
        }
    )
    preprocessing = preprocessing_of()
    assert (preprocessing.resize, preprocessing.crop_fraction) == ("shorter_side", 0.75)
    assert preprocessing.mean == (63.75,) * 3
    assert preprocessing.library == "transformers"


def test_processor_config_without_image_processor_is_ignored(
    preprocessing_of, write_processor_config
):
    write_processor_config(processor_class="CLIPProcessor")
    assert preprocessing_of().mean == (127.5,) * 3


def test_rejects_invalid_processor_config(preprocessing_of, write_processor_config):
    write_processor_config(image_processor=1)
    with pytest.raises(ValueError, match="The processor_config.json .* is invalid"):
        preprocessing_of()


@pytest.mark.parametrize("field, value", [("interpolation", "lanczos"), ("crop_mode", "border")])
def test_unsupported_timm_preprocessing_causes_a_warning(field, value, tmp_path):
    fields = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9, field: value}
    folder = write_case("timm_deit3", tmp_path, config={"pretrained_cfg": fields})
    with pytest.warns(UserWarning, match=f"Ignored .*{value}.*config.json"):
        preprocessing = keras_vit.from_pretrained(folder, num_heads=3).preprocessing
    assert (preprocessing.interpolation, preprocessing.crop_fraction) == ("bicubic", 0.9)
    assert preprocessing.library == "torchvision"


def test_open_clip_config_sets_preprocessing(tmp_path):
    preprocessing = keras_vit.from_pretrained(write_case("clipa", tmp_path)).preprocessing
    np.testing.assert_allclose(preprocessing.mean, [123.675, 116.28, 103.53])
    assert (preprocessing.resize, preprocessing.interpolation) == ("stretch", "bilinear")
