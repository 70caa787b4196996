"""Tests of the registry of families and model sizes."""

import inspect

import pytest

import keras_vit
from keras_vit import families, recipes
from keras_vit.checkpoints import published

from ..shared import SIZES

NAMES = [*families.sizes()]


def test_all_constructors_have_a_size():
    assert sorted(map(families.constructor_name, NAMES)) == sorted(families.CONSTRUCTORS)


@pytest.mark.parametrize("name", NAMES)
def test_each_size_has_a_constructor(name):
    constructor_name = families.constructor_name(name)
    constructor = getattr(keras_vit, constructor_name)
    assert constructor is getattr(keras_vit.models, constructor_name)
    assert constructor_name in keras_vit.__all__
    parameters = inspect.signature(constructor).parameters
    assert parameters["name"].default == constructor_name.lower()
    assert not set(parameters) & set(families.sizes()[name])
    assert constructor.__doc__.startswith(f"{name}, ")


@pytest.mark.parametrize(
    "argument, hint",
    [
        ("num_classes", "did you mean `classes`"),
        ("img_size", "did you mean `input_shape`"),
        ("frobnicate", "its arguments are patch_size"),
    ],
)
def test_unknown_argument_error_suggests_names(argument, hint):
    for constructor in (keras_vit.ViT_Ti16, keras_vit.VisionTransformer):
        with pytest.raises(TypeError, match=f"no argument `{argument}`; {hint}"):
            constructor(**{argument: 3})


def test_weights_are_downloaded_before_the_model_is_built(tmp_path, monkeypatch):
    def fail(**arguments):
        pytest.fail("the model was built")

    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(families.vit._size, "constructor", fail)
    monkeypatch.setattr("keras_vit.families.registry.check_arguments", lambda *_: None)
    with pytest.raises(ConnectionError, match="could not be downloaded"):
        keras_vit.ViT_B16(weights="http://127.0.0.1:9/x.npz")


@pytest.mark.one_backend
def test_constructor_rejects_weights_of_another_family():
    with pytest.raises(ValueError, match="SigLIP-B/16 are siglip, siglip2, siglip_i18n"):
        keras_vit.SigLIP_B16(weights="imagenet21k")


def test_all_arguments_of_a_model_select_its_published_files():
    for entry in published.published_files():
        family = families.find_family(entry.model)
        defaults = families.parameters_of(family.constructor).items()
        arguments = {name: parameter.default for name, parameter in defaults}
        arguments |= family.sizes[entry.model]
        found = published.find_published(entry.collection, **arguments)
        assert found.model == entry.model


def test_only_some_sizes_have_no_published_weights():
    unpublished = set(NAMES) - {entry.model for entry in published.published_files()}
    # `from_pretrained` loads the first three from other repositories.
    assert unpublished == {
        "IJEPA-H/14",
        "IJEPA-H/16",
        "IJEPA-g/16",
        "DINOv3-L+/16",
        "R50+ViT-B/32",
        "R50+ViT-L/16",
        "BiT-R50x2",
        "BiT-R152x1",
        "BiT-R200x3",
    }


def test_models_of_the_recipes_are_in_the_registry():
    models = {name for row in recipes.TABLE_3 for name in row.models}
    unknown = models - set(NAMES)
    assert all("*" in name for name in unknown), unknown  # such as "ViT-*"


@pytest.mark.parametrize(
    "name, canonical",
    [
        ("R152x4", "BiT-R152x4"),
        ("BiT-R152x4", "BiT-R152x4"),
        ("R9x9", "R9x9"),  # not a ResNet of the registry
    ],
)
def test_names_of_resnets_get_a_prefix(name, canonical):
    assert families.canonical_name(name) == canonical


@pytest.mark.parametrize("name", NAMES)
def test_model_config_has_arguments_of_the_size(name):
    config = recipes.defaults(**families.model_config(name))
    assert config["architecture"] == name
    model = config["model"]
    assert None not in model.values()
    assert model.items() >= families.sizes()[name].items()
    signature = inspect.signature(families.find_family(name).constructor)
    signature.bind(**{**model, "input_shape": (224, 224, 3)})


def test_model_config_applies_changes():
    changes = {"input_shape": (384, 256, 3), "dropout": 0.1}
    model = families.model_config("R50+ViT-B/16", pre_logits=True, **changes)["model"]
    stem = {"stem": "resnet", "resnet_blocks": (3, 4, 9)}
    assert model.items() >= {**changes, **stem, "representation_size": 768}.items()


def test_model_config_of_another_size_has_no_name():
    assert families.model_config("ViT-B/16", num_layers=2)["architecture"] == "VisionTransformer"


def test_empty_rotary_field_means_none():
    assert families.model_fields("ViT-B/16")["rotary"] == {}
    family = families.find_family("ViT-B/16")
    assert families.constructor_arguments(family, {"rotary": {}}) == {"rotary": None}


def test_model_config_rejects_unknown_sizes_and_unsupported_pre_logits():
    with pytest.raises(ValueError, match="one of ViT-Ti/16, "):
        families.model_config("ViT-B/15")
    with pytest.raises(ValueError, match="False for BiT-R50x1"):
        families.model_config("R50x1", pre_logits=True)


class Subclass(keras_vit.VisionTransformer):
    pass


def test_subclass_is_written_as_its_base_class(tmp_path):
    model = Subclass(**SIZES, input_shape=(8, 8, 3), include_top=False, exact_gelu=True)
    keras_vit.checkpoints.save(model, tmp_path, format="timm")
    assert type(keras_vit.from_pretrained(tmp_path)) is keras_vit.VisionTransformer
