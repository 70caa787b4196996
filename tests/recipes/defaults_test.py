import pytest

from keras_vit import families, recipes


def test_defaults_apply_only_the_given_changes():
    changed = recipes.defaults(seed=3, optimizer={"weight_decay": 0.5}, model={"patch_size": 4})
    assert (
        changed["seed"] == 3
        and changed["model"]["patch_size"] == 4
        and recipes.defaults()["model"] == {}
    )
    assert changed["optimizer"] == {**recipes.defaults()["optimizer"], "weight_decay": 0.5}
    assert recipes.defaults()["optimizer"]["weight_decay"] == 0
    changed["schedule"]["base"] = 7.0
    assert recipes.defaults()["schedule"]["base"] != 7


def test_optimizer_and_schedule_fields_match_constructors():
    import inspect

    from keras_vit import optimizers
    from keras_vit.optimizers.base import Optimizer

    fields = recipes.defaults()
    arguments = set(inspect.signature(Optimizer).parameters) - {"learning_rate", "kwargs"}
    assert set(fields["optimizer"]) == {"name", *arguments}
    assert set(fields["schedule"]) == set(inspect.signature(optimizers.Schedule).parameters) - {
        "total_steps"
    }


def test_model_fields_match_constructor():
    import inspect

    import keras_vit

    # Training sets these arguments from the data or from other fields, or does not use them.
    others = {
        "classes",
        "preprocessing",
        "weights",
        "remat",
        "include_top",
        "classifier_activation",
        "name",
    }
    others |= {"dtype", "kwargs"}
    for model in ("VisionTransformer", "BiTResNet", "AxialVisionTransformer"):
        parameters = inspect.signature(getattr(keras_vit, model)).parameters
        fields = recipes.model_fields("classification", model)
        assert set(fields) == set(parameters) - others
        for name, value in fields.items():
            default = parameters[name].default
            if isinstance(value, type):
                assert default is inspect.Parameter.empty
            elif name != "input_shape":  # by default, the data determines the shape
                assert value == default or (default is None and not value)
                if name not in ("stem", "resnet_blocks"):
                    assert (
                        families.constructor_arguments(families.find_family(model), fields)[name]
                        == default
                    )


def test_architecture_name_sets_model_fields():
    config = recipes.defaults(architecture="R50+ViT-B/16", model={"dropout": 0.1})
    model = config["model"]
    assert (config["architecture"], model["resnet_blocks"], model["stem"]) == (
        "R50+ViT-B/16",
        (3, 4, 9),
        "resnet",
    )
    assert (model["hidden_size"], model["dropout"], model["input_shape"]) == (768, 0.1, ())
    with pytest.raises(ValueError, match="of ViT-Ti/16, .*: architecture='ViT-B/15'"):
        recipes.defaults(architecture="ViT-B/15")


def test_model_fields_depend_on_task_and_architecture():
    model = recipes.defaults(model={"patch_size": 4})["model"]
    assert model["exact_gelu"] is False and model["epsilon"] == 1e-6 and "num_layers" not in model
    assert recipes.defaults(architecture="BiTResNet", model={"depth": 50})["model"]["version"] == 2
    assert recipes.defaults(task="a_task_of_ones_own", model={"ratio": 0.5})["model"] == {
        "ratio": 0.5
    }


def test_rejects_unknown_fields_and_wrong_types():
    with pytest.raises(
        ValueError,
        match="fields of a config are recipe, .*: sede",
    ):
        recipes.defaults(sede=3)
    with pytest.raises(
        ValueError, match="The fields of `schedule` are decay, base, .* Received: rate"
    ):
        recipes.defaults(schedule={"rate": 0.1})
    with pytest.raises(
        ValueError, match="`clip_norm` must be of type float. Received: clip_norm=1"
    ):
        recipes.defaults(clip_norm=1)
    with pytest.raises(
        ValueError, match="The fields of `model` are patch_size, .* Received: patchsize"
    ):
        recipes.defaults(model={"patchsize": 4})
    with pytest.raises(
        ValueError, match="`patch_size` must be of type int. Received: patch_size=4.0"
    ):
        recipes.defaults(model={"patch_size": 4.0})
    with pytest.raises(ValueError, match="`dropout` must be of type float. Received: dropout=0"):
        recipes.defaults(model={"patch_size": 4, "dropout": 0})
