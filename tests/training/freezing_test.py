"""Tests of runs that train only some of their weights: `config.freeze` and `config.lora_rank`."""

import shutil

import keras
import numpy as np
import pytest

from keras_vit import training
from keras_vit.training.freezing import validate
from keras_vit.training.loop import _next_stop
from keras_vit.training.state_files import StateReader

from . import small_run

MODEL = {**small_run.MODEL, "num_layers": 2}
CHANGES = {
    "model": MODEL,
    "total_steps": 3,
    "checkpoint_every_steps": 2,
    "eval_every_steps": 0,
    "optimizer": {"name": "adamw", "weight_decay": 0.1},
    "steps_per_call": 1,
    "accumulate_steps": 1,
}
# The parts of the paths of the weights that change.
TRAINED = {
    "backbone": ("head/",),
    "blocks:1": ("encoderblock_1/", "encoder_norm/", "head/"),
    "lora": ("query/kernel", "value/kernel", "head/"),
}


def changes_of(name):
    return {**CHANGES, **({"lora_rank": 2} if name == "lora" else {"freeze": name})}


def arrays_of(model):
    weights = [w for w in model.weights if "seed_generator" not in w.path]
    return {w.path: np.array(keras.ops.convert_to_numpy(w)) for w in weights}


def run(workdir, changes, write=lambda line: None):
    """Returns the weights before and after training, by path."""
    config = small_run.config_of(**changes)
    before = {}
    result = training.run(
        config,
        training.Workdir(workdir, config.to_dict()),
        write,
        check=lambda model, inputs: before.update(arrays_of(model)),
    )
    return before, arrays_of(result.model), result


@pytest.mark.full
@pytest.mark.parametrize("name", TRAINED)
def test_frozen_weights_never_change(name, tmp_path):
    lines = []
    before, after, result = run(tmp_path / "whole", changes_of(name), lines.append)
    assert "warning: the frozen weights are random" in "".join(lines)
    for path, array in after.items():  # without adapters, which are merged
        changes = any(part in path for part in TRAINED[name])
        assert np.array_equal(before[path], array) != changes, path
    # There are slots and averages only of the trained weights.
    with StateReader(f"{tmp_path}/whole/checkpoints/000000003/state") as reader:
        names = list(reader._pieces)
    trained = [name for name in names if name.startswith("weights/")]
    assert len(trained) == {"backbone": 2, "blocks:1": 20, "lora": 10}[name]
    assert sum(name.startswith("averages/") for name in names) == len(trained)
    assert sum(name.startswith("slots/") for name in names) == 2 * len(trained) + 1
    if name == "backbone":
        return
    # A run that resumes, and one that is loaded, have the same weights bit for bit.
    shutil.copytree(tmp_path / "whole", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "checkpoints" / "000000003")
    _, resumed, _ = run(tmp_path / "copy", changes_of(name))
    loaded, _ = training.load_checkpoint(tmp_path / "whole", lambda line: None)
    images = np.zeros((2, 8, 8, 3), "float32")
    for path, array in after.items():
        np.testing.assert_array_equal(resumed[path], array)
        np.testing.assert_array_equal(arrays_of(loaded.model)[path], array)
    expected = result.model.predict(images, verbose=0)
    np.testing.assert_allclose(loaded.model.predict(images, verbose=0), expected, rtol=1e-5)


@pytest.mark.full
def test_weights_that_are_trained_later(tmp_path):
    changes = {
        **changes_of("backbone"),
        "unfreeze_at_step": 2,
        "total_steps": 4,
        "checkpoint_every_steps": 1,
        "ema_decay": 0.0,
        "optimizer": {"name": "adamw", "weight_decay": 0.1},
        "schedule": {"decay": "constant", "base": 1e-3},
    }
    whole = tmp_path / "whole"
    lines = []

    def copy_before(line):  # the log line of a step comes before its checkpoint
        lines.append(line)
        for step in (2, 3, 4):
            if line.startswith(f"step {step}/4"):
                shutil.copytree(whole, tmp_path / f"{step - 1}")

    before, after, _ = run(whole, changes, copy_before)
    assert "warning: the frozen weights are random" in "".join(lines)
    # Until step 2, only the head changes.
    two, three = (
        arrays_of(training.load_checkpoint(tmp_path / name, lambda line: None)[0].model)
        for name in ("2", "3")
    )
    for path, array in two.items():
        assert np.array_equal(before[path], array) == (not path.startswith("head/")), path
        # The first update of a weight has the size of a first update of AdamW.
        if path.endswith("mlp_1/kernel"):
            change = np.abs(three[path] - array)
            assert change.mean() > 5e-4 and change.max() < 1.2e-3
    # A run that resumes before or at this step has the same weights bit for bit.
    for name in ("1", "2"):
        _, resumed, _ = run(tmp_path / name, changes)
        for path, array in after.items():
            np.testing.assert_array_equal(resumed[path], array)


def test_calls_end_before_weights_are_unfrozen():
    config = small_run.config_of(steps_per_call=100, log_every_steps=100, eval_every_steps=0)
    with config.unlocked():
        config.update(checkpoint_every_steps=100, unfreeze_at_step=7)
    assert [_next_stop(config, step, 50) for step in (0, 6, 7)] == [7, 7, 50]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze": "head"}, "`freeze` must be backbone"),
        ({"freeze": "backbone", "lora_rank": 2}, "must be '' with `lora_rank`"),
        ({"unfreeze_at_step": 2}, "`unfreeze_at_step` requires `freeze`"),
        ({"freeze": "backbone", "task": "image_text"}, "`model.locked` freezes the image"),
    ],
)
def test_rejects_bad_values(changes, message):
    with pytest.raises(ValueError, match=message):
        validate(small_run.config_of(**changes))


def test_rejects_too_many_blocks(tmp_path):
    with pytest.raises(ValueError, match="must be at most blocks:2"):
        run(tmp_path, {**CHANGES, "freeze": "blocks:3"})
