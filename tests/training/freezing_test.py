"""Tests of runs that train only some of their weights: `config.freeze` and `config.lora_rank`."""

import collections
import shutil

import keras
import numpy as np
import pytest

from keras_vit import training
from keras_vit.training.freezing import validate
from keras_vit.training.loop import _next_stop
from keras_vit.training.state_files import StateReader

from ..shared import assert_same_arrays
from . import small_run

CHANGES = {
    "model": {**small_run.MODEL, "num_layers": 2},
    "total_steps": 3,
    "checkpoint_every_steps": 2,
    "eval_every_steps": 0,
    "optimizer": {"name": "adamw", "weight_decay": 0.1},
    "steps_per_call": 1,
    "accumulate_steps": 1,
}
LORA = {"lora_rank": 2}
NUM_BLOCK = 16  # number of weights of a block
NUM_NORM = NUM_HEAD = 2
NUM_LORA = 2 * 4  # two matrices for the kernels of queries and values in two blocks


def arrays_of(model):
    weights = [w for w in model.weights if "seed_generator" not in w.path]
    return {w.path: np.array(keras.ops.convert_to_numpy(w)) for w in weights}


def run(workdir, changes, write=print):
    """Returns the weights before and after training, by path."""
    config = small_run.config_of(**{**CHANGES, **changes})
    before = {}
    result = training.run(
        config,
        training.Workdir(workdir, config.to_dict()),
        write,
        check=lambda model, inputs: before.update(arrays_of(model)),
    )
    return before, arrays_of(result.model)


@pytest.mark.full
@pytest.mark.parametrize(
    ("fields", "changed", "num_trained"),
    [
        ({"freeze": "backbone"}, ("head/",), NUM_HEAD),
        (
            {"freeze": "blocks:1"},
            ("encoderblock_1/", "encoder_norm/", "head/"),
            NUM_BLOCK + NUM_NORM + NUM_HEAD,
        ),
        (LORA, ("query/kernel", "value/kernel", "head/"), NUM_LORA + NUM_HEAD),
    ],
    ids=["backbone", "blocks", "lora"],
)
def test_frozen_weights_never_change(fields, changed, num_trained, tmp_path):
    lines = []
    before, after = run(tmp_path, fields, lines.append)
    assert "warning: the frozen weights are random" in "".join(lines)
    for path, array in after.items():  # without adapters, which are merged
        is_trained = any(part in path for part in changed)
        assert np.array_equal(before[path], array) != is_trained, path
    with StateReader(f"{tmp_path}/checkpoints/000000003/state") as reader:
        counts = collections.Counter(name.split("/")[0] for name in reader._pieces)
    for field in ("weights", "averages"):
        assert counts[field] == num_trained
    assert counts["slots"] == 2 * num_trained + 1  # the moments of AdamW, and the number of updates


@pytest.mark.full
def test_resumed_and_loaded_runs_with_lora_have_the_same_weights(tmp_path):
    _, after = run(tmp_path / "whole", LORA)
    shutil.copytree(tmp_path / "whole", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "checkpoints" / "000000003")
    _, resumed = run(tmp_path / "copy", LORA)
    loaded, _ = training.load_checkpoint(tmp_path / "whole")
    assert_same_arrays(resumed, after)
    assert_same_arrays(arrays_of(loaded.model), after)


@pytest.fixture(scope="module")
def unfrozen(tmp_path_factory):
    """Trains for 4 steps, and all weights from step 2 on. Returns the config changes, the weights
    before and after, and the folder of copies of the workdir after each step."""
    changes = {
        "freeze": "backbone",
        "unfreeze_at_step": 2,
        "total_steps": 4,
        "checkpoint_every_steps": 1,
        "ema_decay": 0.0,
        "schedule": {"decay": "constant", "base": 1e-3},
    }
    folder = tmp_path_factory.mktemp("unfrozen")

    def copy_before(line):  # the log line of a step comes before its checkpoint
        for step in (2, 3, 4):
            if line.startswith(f"step {step}/4"):
                shutil.copytree(folder / "whole", folder / f"{step - 1}")

    before, after = run(folder / "whole", changes, copy_before)
    return changes, before, after, folder


@pytest.mark.full
def test_weights_are_unfrozen_at_their_step(unfrozen):
    _, before, _, folder = unfrozen
    at_step_2, at_step_3 = (
        arrays_of(training.load_checkpoint(folder / step)[0].model) for step in ("2", "3")
    )
    for path, array in at_step_2.items():
        assert np.array_equal(before[path], array) != path.startswith("head/"), path
    # The first update of a weight by AdamW has the size of the learning rate, 1e-3.
    path = "encoderblock_0/mlp_1/kernel"
    change = np.abs(at_step_3[path] - at_step_2[path])
    assert change.mean() > 5e-4 and change.max() < 1.2e-3


@pytest.mark.full
@pytest.mark.parametrize("step", [1, 2])
def test_resume_before_or_at_the_step_of_unfreezing_is_bit_exact(step, unfrozen):
    changes, _, after, folder = unfrozen
    _, resumed = run(folder / str(step), changes)
    assert_same_arrays(resumed, after)


def test_calls_end_before_weights_are_unfrozen():
    numbers = dict.fromkeys(("steps_per_call", "log_every_steps", "checkpoint_every_steps"), 100)
    config = small_run.config_of(**numbers, eval_every_steps=0, unfreeze_at_step=7)
    assert [_next_stop(config, step, 50) for step in (0, 6, 7)] == [7, 7, 50]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze": "head"}, "`freeze` must be backbone"),
        ({"freeze": "backbone", "lora_rank": 2}, "must be '' with `lora_rank`"),
        ({"unfreeze_at_step": 2}, "`unfreeze_at_step` requires `freeze`"),
        ({"freeze": "backbone", "task": "image_text"}, "`model.locked` freezes the image"),
        (
            {"lora_rank": 2, "task": "segmentation", "model": {"frozen": True}},
            "`model.frozen` must be False",
        ),
    ],
)
def test_rejects_bad_values(changes, message):
    with pytest.raises(ValueError, match=message):
        validate(small_run.config_of(**changes))


def test_rejects_too_many_blocks(tmp_path):
    with pytest.raises(ValueError, match="must be at most blocks:2"):
        run(tmp_path, {"freeze": "blocks:3"})
