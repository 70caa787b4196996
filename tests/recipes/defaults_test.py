"""Tests of the fields of a config and their defaults."""

import inspect

import pytest

import keras_vit
from keras_vit import families, optimizers, recipes
from keras_vit.optimizers.base import Optimizer

# Training sets these arguments of models from the data or from other fields, or does not use them.
ARGUMENTS_WITHOUT_FIELD = {
    "classes",
    "classifier_activation",
    "dtype",
    "include_top",
    "kwargs",
    "name",
    "preprocessing",
    "remat",
    "weights",
}


def test_changes_are_merged_and_do_not_alter_defaults():
    changed = recipes.defaults(seed=3, optimizer={"weight_decay": 0.5}, model={"patch_size": 4})
    changed["schedule"]["base"] = 7.0
    defaults = recipes.defaults()
    assert changed["seed"] == 3 and changed["model"]["patch_size"] == 4
    assert defaults["model"] == {} and defaults["schedule"]["base"] != 7
    assert defaults["optimizer"]["weight_decay"] == 0
    assert changed["optimizer"] == {**defaults["optimizer"], "weight_decay": 0.5}


def test_optimizer_and_schedule_fields_match_constructors():
    fields = recipes.defaults()
    optimizer = set(inspect.signature(Optimizer).parameters) - {"learning_rate", "kwargs"}
    schedule = set(inspect.signature(optimizers.Schedule).parameters) - {"total_steps"}
    assert set(fields["optimizer"]) == {"name", *optimizer}
    assert set(fields["schedule"]) == schedule


@pytest.mark.parametrize("model", ["VisionTransformer", "BiTResNet", "AxialVisionTransformer"])
def test_model_fields_match_constructor(model):
    parameters = inspect.signature(getattr(keras_vit, model)).parameters
    fields = recipes.model_fields("classification", model)
    arguments = families.constructor_arguments(families.find_family(model), fields)
    assert set(fields) == set(parameters) - ARGUMENTS_WITHOUT_FIELD
    for name, value in fields.items():
        default = parameters[name].default
        if isinstance(value, type):
            assert default is inspect.Parameter.empty
        elif name != "input_shape":  # by default, the data determines the shape
            assert value == default or (default is None and not value)
            assert name in ("stem", "resnet_blocks") or arguments[name] == default


def test_model_fields_depend_on_architecture_and_task():
    model = recipes.defaults(architecture="R50+ViT-B/16", model={"dropout": 0.1})["model"]
    expected = {"resnet_blocks": (3, 4, 9), "stem": "resnet", "hidden_size": 768, "dropout": 0.1}
    assert expected.items() <= model.items()
    assert recipes.defaults(architecture="BiTResNet", model={"depth": 50})["model"]["version"] == 2
    custom = recipes.defaults(task="a_task_of_ones_own", model={"ratio": 0.5})
    assert custom["model"] == {"ratio": 0.5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "ViT-B/15"}, "ViT-Ti/16, .*architecture='ViT-B/15'"),
        ({"sede": 3}, "fields of a config are .*: sede"),
        ({"schedule": {"rate": 0.1}}, "fields of `schedule` .*: rate"),
        ({"clip_norm": 1}, "`clip_norm` must be of type float"),
        ({"optimizer": "adamw"}, "`optimizer` must be of type dict"),
        ({"model": 3}, "`model` must be of type dict"),
        ({"model": {"patchsize": 4}}, "fields of `model` .*: patchsize"),
        ({"model": {"patch_size": 4.0}}, "`patch_size` must be of type int"),
    ],
)
def test_rejects_unknown_fields_and_wrong_types(changes, message):
    with pytest.raises(ValueError, match=message):
        recipes.defaults(**changes)
