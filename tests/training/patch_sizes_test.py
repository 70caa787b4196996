"""Tests of training at several patch sizes, with the engine of the current Keras backend."""

import copy

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
from keras_vit import checkpoints, data, recipes, tasks, training
from keras_vit.tasks.patch_sizes import patch_size_rows
from keras_vit.training.engines import choose_engine

from ..shared import SIZES, randomize_head

PATCH_SIZES = (2, 4, 8)
MODEL = {**SIZES, "dropout": 0.1}


def _config(**changes):
    fields = {
        "batch_size": 16,
        "total_steps": 6,
        "patch_sizes": PATCH_SIZES,
        "strategy": "default",
        "accumulate_steps": 2,
        "ema_decay": 0.5,
        "clip_norm": 1.0,
        "eval_every_steps": 3,
        "model": MODEL,
        "data": data.defaults(name="digits", train_split="train[:64]", test_split="test[:32]"),
        "optimizer": {"name": "adamw"},
        "schedule": {"base": 1e-2},
    }
    return ConfigDict(recipes.defaults(**{**fields, **changes}))


def _size_of_step(config, step):
    return tasks.get(config).variant_of_step(step).size


def _engine(config):
    engine = choose_engine(config)
    keras.utils.set_random_seed(0)
    inputs = data.from_config(config.data, batch_size=config.batch_size, seed=config.seed)
    engine.build(config, tasks.get(config), inputs, config.total_steps, randomize_head)
    return engine, inputs


def _run(config, workdir):
    return training.run(config, training.Workdir(workdir, config.to_dict()))


def _rows(engine, steps):
    return [
        {name: float(values[0]) for name, values in engine.train(step, 1).metrics.items()}
        for step in steps
    ]


def _weights(engine):
    return [keras.ops.convert_to_numpy(weight) for weight in engine.model.trainable_variables]


@pytest.mark.one_backend
def test_patch_size_depends_on_seed_and_step():
    task = tasks.get(_config(seed=0))
    sizes = [task.variant_of_step(step).size for step in range(300)]
    assert sizes[:9] == [4, 2, 4, 8, 8, 8, 4, 2, 4]
    assert min(sizes.count(size) for size in PATCH_SIZES) > 75
    assert sizes[7] == _size_of_step(_config(seed=0), 7)  # without the earlier steps
    assert sizes != [_size_of_step(_config(seed=1), step) for step in range(300)]


@pytest.mark.one_backend
def test_first_variant_needs_most_memory():
    task = tasks.get(_config(patch_sizes=(8, 2, 4)))
    assert [variant.size for variant in task.variants] == [2, 4, 8]


@pytest.mark.one_backend
def test_wraps_a_custom_task_once():
    config = _config()
    custom = type("Custom", (tasks.Classification,), {})(config)
    task = tasks.get(config, custom)
    names = [f"patch{size}/accuracy" for size in PATCH_SIZES]
    assert task.evaluation_metrics == ("loss", "accuracy", *names)
    assert tasks.get(config, task) is task and copy.copy(task).variants == task.variants
    assert task.facts_of_weights is custom.facts_of_weights
    with pytest.raises(AttributeError):
        task.facts_of_weights = {}  # the custom task would not see it


@pytest.mark.one_backend
def test_frozen_blocks_may_be_trained_later():
    engine, _ = _engine(_config(freeze="blocks:1", unfreeze_at_step=2))
    before = _weights(engine)[0]  # the kernel of the patch embedding
    _rows(engine, [0, 1])  # the second one at another patch size
    np.testing.assert_array_equal(_weights(engine)[0], before)
    _rows(engine, [2])
    assert (_weights(engine)[0] != before).any()


@pytest.mark.full
@pytest.mark.parametrize("size", [2, 8])
def test_loss_matches_model_at_patch_size_of_step(size, tmp_path):
    model = {**MODEL, "dropout": 0.0}
    config = _config(model=model, patch_sizes=(2, 8), accumulate_steps=1)
    engine, inputs = _engine(config)
    checkpoints.save(engine.gather_model(), tmp_path / "model.npz")
    resized = keras_vit.from_pretrained(tmp_path / "model.npz", patch_size=size)
    step = next(step for step in range(9) if _size_of_step(config, step) == size)
    batch = next(iter(inputs.train_batches(step)))
    expected, _ = tasks.get(config).losses_and_metrics(
        resized, [keras.ops.convert_to_tensor(part.numpy()) for part in batch]
    )
    before = _weights(engine)[:2]  # the kernel and bias of the patch embedding
    (row,) = _rows(engine, [step])
    np.testing.assert_allclose(row["loss"], np.mean(expected), rtol=1e-5)
    assert all(np.abs(new - old).mean() > 1e-3 for new, old in zip(_weights(engine), before))


@pytest.mark.slow
def test_evaluates_at_every_patch_size(tmp_path):
    config = _config(best_metric="patch2/accuracy", total_steps=4)
    result = _run(config, tmp_path / "run")
    accuracy = {size: result.metrics[f"test/patch{size}/accuracy"] for size in PATCH_SIZES}
    assert result.metrics["test/accuracy"] == accuracy[4]
    assert "patch8/accuracy" in training.read_metrics(tmp_path / "run" / "evaluations.csv")
    rows = patch_size_rows(result.model, PATCH_SIZES, result.metrics)
    assert [row["tokens"] for row in rows] == [17, 5, 2]
    assert [row["accuracy"] for row in rows] == list(accuracy.values())
    checkpoints.save(result.model, tmp_path / "model.npz")
    for size in (2, 8):
        model = keras_vit.from_pretrained(tmp_path / "model.npz", patch_size=size)
        right = 0
        for images, labels, weights in result.inputs.eval_batches():
            answers = keras.ops.convert_to_numpy(model(images.numpy())).argmax(-1)
            right += sum(weights.numpy() * (labels.numpy().argmax(-1) == answers))
        assert accuracy[size] == right / 32


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_sizes": (4,)}, "two or more different positive integers"),
        ({"patch_sizes": (2, 4, 2)}, "two or more different positive integers"),
        ({"patch_sizes": (4, 0)}, "two or more different positive integers"),
        ({"patch_sizes": (4, "8")}, "two or more different positive integers"),
        ({"patch_sizes": (4, 16)}, "whole number of patches.*=8 with patch_size=16"),
        ({"steps_per_call": 2}, "1 if `patch_sizes` is set.*steps_per_call=2"),
        ({"task": "masked_patches"}, "MaskedPatchVisionTransformer"),
    ],
)
def test_rejects_invalid_config_before_first_step(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message) as error:
        _run(_config(**changes), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "metrics.csv").exists()
