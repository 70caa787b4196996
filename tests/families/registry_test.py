"""Tests of the registry of families and model sizes."""

import inspect

import pytest

import keras_vit
from keras_vit import families, recipes
from keras_vit.arguments import parameters_of
from keras_vit.checkpoints import published
from keras_vit.models.image_model import ImageModel

from ..shared import SIZES

NAMES = [*families.sizes()]


@pytest.mark.parametrize("name", NAMES)
def test_each_size_has_a_constructor(name, monkeypatch):
    family = families.find_family(name)
    function = getattr(keras_vit, families.constructor_name(name))
    assert (
        function
        is getattr(keras_vit.models, function.__name__)
        is getattr(families, function.__name__)
    )
    assert function.__name__ in keras_vit.__all__ and function.__name__ in families.CONSTRUCTORS
    parameters = inspect.signature(function).parameters
    assert parameters["name"].default == function.__name__.lower()
    assert not set(parameters) & set(family.sizes[name])
    assert (
        function.__doc__.startswith(f"{name}, ") and family.constructor.__name__ in function.__doc__
    )


def test_constructors_and_sizes_match():
    assert sorted(map(families.constructor_name, NAMES)) == sorted(families.CONSTRUCTORS)


@pytest.mark.parametrize(
    "argument, hint",
    [
        ("num_classes", "did you mean `classes`"),
        ("class", "did you mean `classes`"),
        ("img_size", "did you mean `input_shape`"),
        ("frobnicate", "its arguments are patch_size"),
    ],
)
def test_unknown_argument_error_suggests_names(argument, hint):
    with pytest.raises(TypeError, match=f"no argument `{argument}`; {hint}.*: {argument}=3"):
        keras_vit.ViT_Ti16(**{argument: 3})
    with pytest.raises(
        TypeError,
        match=f"takes no argument `{argument}`; .*: {argument}=3",
    ):
        keras_vit.VisionTransformer(**{argument: 3})


def test_weights_are_downloaded_before_the_model_is_built(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(
        families.vit._size, "constructor", lambda **_: pytest.fail("the model was built")
    )
    monkeypatch.setattr("keras_vit.families.registry.check_arguments", lambda *_: None)
    with pytest.raises(ConnectionError, match="could not be downloaded"):
        keras_vit.ViT_B16(weights="http://127.0.0.1:9/x.npz")


@pytest.mark.one_backend
@pytest.mark.parametrize("weights", ["imagenet21k", "sam", "deit3", "mae", "webli"])
def test_constructor_rejects_other_collections(weights):
    with pytest.raises(ValueError, match="SigLIP-B/16 are siglip, siglip2, siglip_i18n"):
        keras_vit.SigLIP_B16(weights=weights)


def test_published_models_are_in_the_registry():
    models = {row.model for row in published.rows()}
    assert models <= set(NAMES)
    # `from_pretrained` loads them from other repositories.
    ijepa = {
        "IJEPA-H/14",
        "IJEPA-H/16",
        "IJEPA-g/16",
    }
    assert set(NAMES) - models - ijepa == {
        "DINOv3-L+/16",
        "R50+ViT-B/32",
        "R50+ViT-L/16",
        "BiT-R50x2",
        "BiT-R152x1",
        "BiT-R200x3",
    }


def test_table_3_models_are_in_the_registry():
    for row in recipes.TABLE_3:
        for name in row.models:
            assert name in NAMES or "*" in name
    bit = {name for row in recipes.TABLE_3 for name in row.models if name.startswith("BiT-")}
    assert bit == {"BiT-R50x1", "BiT-R50x2", "BiT-R101x1", "BiT-R152x1", "BiT-R152x2"}


def test_resnet_has_two_names():
    assert (
        families.canonical_name("R152x4") == families.canonical_name("BiT-R152x4") == "BiT-R152x4"
    )
    assert (
        families.canonical_name("ViT-B/16") == "ViT-B/16"
        and families.canonical_name("R9x9") == "R9x9"
    )


@pytest.mark.parametrize("name", NAMES)
def test_model_config_has_arguments_of_the_size(name):
    config = recipes.defaults(**families.model_config(name))
    size = families.sizes()[name]
    assert config["architecture"] == name and None not in config["model"].values()
    assert {key: config["model"][key] for key in size} == size
    signature = inspect.signature(families.find_family(name).constructor)
    signature.bind(**{**config["model"], "input_shape": (224, 224, 3)})


def test_model_config_applies_changes():
    config = families.model_config(
        "R50+ViT-B/16", input_shape=(384, 256, 3), pre_logits=True, dropout=0.1
    )
    model = config["model"]
    assert (
        model["resnet_blocks"] == (3, 4, 9)
        and model["stem"] == "resnet"
        and model["dropout"] == 0.1
    )
    assert model["representation_size"] == 768 and model["input_shape"] == (384, 256, 3)
    assert families.model_config("ViT-B/16", num_layers=2)["architecture"] == "VisionTransformer"
    with pytest.raises(
        ValueError,
        match="one of ViT-Ti/16, .*BiTResNet.*='ViT-B/15'",
    ):
        families.model_config("ViT-B/15")
    with pytest.raises(ValueError, match="False for BiT-R50x1.*pre_logits=True"):
        families.model_config("R50x1", pre_logits=True)


def test_subclasses_are_written_as_their_base_class(tmp_path):
    class MyVisionTransformer(keras_vit.VisionTransformer):
        pass

    class MyNaFlex(keras_vit.NaFlexVisionTransformer):
        pass

    sizes = {**SIZES, "mlp_dim": 32}
    shape = {"input_shape": (8, 8, 3), "classes": 3}
    vit = MyVisionTransformer(**sizes, **shape, exact_gelu=True)
    keras_vit.checkpoints.save(vit, tmp_path / "vit", format="timm")
    naflex = MyNaFlex(**sizes, **shape)
    with pytest.raises(ValueError, match="No format of 'huggingface' supports"):
        keras_vit.checkpoints.save(naflex, tmp_path / "naflex", format="huggingface")


def test_arguments_of_a_subclass_include_name_and_dtype():
    class Mine(ImageModel):
        def __init__(self, *, input_shape=(8, 8, 3), **kwargs):
            raise NotImplementedError

    assert set(parameters_of(Mine)) == {"input_shape", "name", "dtype"}
