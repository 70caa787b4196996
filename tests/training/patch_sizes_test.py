"""Tests of training at several patch sizes, with the engine of the current Keras backend."""

import collections
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
SIDE = 8


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


def _rows(engine, steps):
    return [
        {name: float(values[0]) for name, values in engine.train(step, 1).metrics.items()}
        for step in steps
    ]


def _weights(engine):
    return [keras.ops.convert_to_numpy(weight) for weight in engine.model.trainable_variables]


@pytest.mark.one_backend
def test_patch_size_depends_on_seed_and_step():
    draws = {}
    for seed in (0, 1):
        task = tasks.get(_config(seed=seed))
        draws[seed] = [task.variant_of_step(step).size for step in range(300)]
    assert draws[0] != draws[1]
    assert draws[0][:9] == [4, 2, 4, 8, 8, 8, 4, 2, 4]
    assert draws[0][7] == _size_of_step(_config(), 7)
    counts = collections.Counter(draws[0])
    assert set(counts) == set(PATCH_SIZES) and min(counts.values()) > 75
    # The first needs the most memory.
    assert [variant.size for variant in task.variants] == [
        2,
        4,
        8,
    ]
    alone = tasks.get(_config(patch_sizes=()))
    assert alone.variants == (alone.variant_of_step(7),) == (alone,)


@pytest.mark.one_backend
def test_wraps_a_custom_task_once():
    config = _config()
    custom = type("Custom", (tasks.Classification,), {})(config)
    task = tasks.get(config, custom)
    assert task.evaluation_metrics == (
        "loss",
        "accuracy",
        *(f"patch{size}/accuracy" for size in PATCH_SIZES),
    )
    assert tasks.get(config, task) is task and copy.copy(task).variants == task.variants
    assert task.facts_of_weights is custom.facts_of_weights
    with pytest.raises(AttributeError):
        task.facts_of_weights = {}  # the custom task would not see it


@pytest.mark.one_backend
def test_frozen_blocks_may_be_trained_later():
    config = _config(freeze="blocks:1", unfreeze_at_step=1, patch_sizes=(4, 8))
    engine, _ = _engine(config)
    changes = []
    for step in range(2):
        before = _weights(engine)[0]  # the kernel of the patch embedding
        assert np.isfinite(_rows(engine, [step])[0]["loss"])
        changes.append(np.abs(_weights(engine)[0] - before).max())
    assert changes[0] == 0 < changes[1]


@pytest.mark.full
def test_loss_matches_model_at_patch_size_of_step(tmp_path):
    config = _config(
        model={**MODEL, "dropout": 0.0},
        seed=1,
        patch_sizes=(2, 8),
        accumulate_steps=1,
        ema_decay=0.0,
    )
    engine, inputs = _engine(config)
    task = tasks.get(config)
    seen = set()
    for step, batch in zip(range(2), inputs.train_batches(0)):
        checkpoints.save(engine.gather_model(), tmp_path / "model.npz")
        size = _size_of_step(config, step)
        model = keras_vit.from_pretrained(tmp_path / "model.npz", patch_size=size)
        losses, _ = task.losses_and_metrics(
            model, [keras.ops.convert_to_tensor(part.numpy()) for part in batch]
        )
        before = _weights(engine)[:2]  # the kernel and bias of the patch embedding
        (row,) = _rows(engine, [step])
        np.testing.assert_allclose(
            row["loss"], np.mean(keras.ops.convert_to_numpy(losses)), rtol=1e-5
        )
        assert all(np.abs(new - old).mean() > 1e-3 for new, old in zip(_weights(engine), before))
        seen.add(size)
    assert seen == {2, 8}


@pytest.mark.full
def test_resume_is_bit_exact(tmp_path):
    whole, _ = _engine(_config())
    rows = _rows(whole, range(3))
    whole.save(f"{tmp_path}/state")
    rows += _rows(whole, range(3, 6))
    resumed, _ = _engine(_config())
    resumed.restore(f"{tmp_path}/state")
    assert _rows(resumed, range(3, 6)) == rows[3:]
    for ours, theirs in zip(_weights(resumed), _weights(whole)):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_evaluates_at_every_patch_size(tmp_path):
    config = _config(best_metric="patch2/accuracy", total_steps=4)
    result = training.run(
        config, training.Workdir(tmp_path / "run", config.to_dict()), lambda line: None
    )
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
        ({"patch_sizes": (4,)}, "two or more different.*patch_sizes=\\(4,\\)"),
        ({"patch_sizes": (2, 4, 2)}, "two or more different.*patch_sizes=\\(2, 4, 2\\)"),
        ({"patch_sizes": (4, 0)}, "positive integers.*patch_sizes=\\(4, 0\\)"),
        ({"patch_sizes": (4, "8")}, "positive integers.*patch_sizes=\\(4, '8'\\)"),
        ({"steps_per_call": 2}, "1 if `patch_sizes` is set.*steps_per_call=2"),
        (
            {"patch_sizes": (4, 16)},
            "whole number of patches.*=8 with patch_size=16",
        ),
        (
            {"patch_sizes": (3, 4)},
            "whole number of patches.*=8 with patch_size=3",
        ),
        ({"model": {**MODEL, "position_embedding": "relative"}}, "position_embedding='relative'"),
        ({"task": "masked_patches"}, "MaskedPatchVisionTransformer"),
        (
            {"architecture": "BiTResNet", "model": {"depth": 8}},
            "plain VisionTransformer.*BiTResNet",
        ),
        ({"architecture": "AxialVisionTransformer"}, "plain VisionTransformer.*Axial"),
        ({"best_metric": "patch16/accuracy"}, "`best_metric` must be one of .*patch8/accuracy"),
    ],
)
def test_rejects_invalid_config_before_first_step(changes, message, tmp_path):
    config = _config(**changes)
    with pytest.raises(ValueError, match=message) as error:
        training.run(
            config, training.Workdir(tmp_path / "run", config.to_dict()), lambda line: None
        )
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "metrics.csv").exists()
