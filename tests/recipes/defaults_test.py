import pytest

from keras_vit import recipes


def test_a_change_of_a_field_leaves_the_others_and_the_defaults_as_they_are():
    changed = recipes.defaults(seed=3, optimizer={"weight_decay": 0.5}, model={"patch_size": 4})
    assert changed["seed"] == 3 and changed["model"] == {"patch_size": 4}
    assert changed["optimizer"] == {**recipes.defaults()["optimizer"], "weight_decay": 0.5}
    assert recipes.defaults()["optimizer"]["weight_decay"] == 0
    changed["schedule"]["base"] = 7.0
    assert recipes.defaults()["schedule"]["base"] != 7


def test_optimizer_and_schedule_have_the_fields_that_their_makers_take():
    import inspect

    from keras_vit import optimizers

    fields = recipes.defaults()
    assert set(fields["optimizer"]) == set(inspect.signature(optimizers.get).parameters) - {"schedule"}
    assert set(fields["schedule"]) == set(inspect.signature(optimizers.Schedule).parameters) - {"total_steps"}


def test_what_is_no_field_or_of_another_type_is_refused():
    with pytest.raises(ValueError, match="The fields of a config are recipe, task, seed, .*. Received: sede"):
        recipes.defaults(sede=3)
    with pytest.raises(ValueError, match="The fields of `schedule` are decay, base, .* Received: rate"):
        recipes.defaults(schedule={"rate": 0.1})
    with pytest.raises(ValueError, match="`clip_norm` must be of type float. Received: clip_norm=1"):
        recipes.defaults(clip_norm=1)
