"""Tests of `training.run`: short runs and error messages."""

import functools
import json
import os
import random
import shutil
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_vit import data, tasks, training
from keras_vit.data.pipeline import Fingerprint
from keras_vit.training.checkpoint_manager import finished_steps
from keras_vit.training.diagnosis import Diverged
from keras_vit.training.tensorflow import engine as tensorflow_engine
from keras_vit.training.weights import load_inputs

from . import small_run

SHORT = {"total_steps": 2, "eval_every_steps": 0, "schedule": {"base": 1e-2}}


def _start(workdir, **changes):
    """Returns the result of a run and the lines of its log."""
    lines = []
    return small_run.start("alone", workdir, write=lines.append, **changes), lines


def _read_counters(workdir, step):
    return json.loads((workdir / "checkpoints" / f"{step:09}" / "finished").read_text())


def _write_images(folder, broken, max_bad_share):
    """Writes 16 training and 6 test images of two classes, and returns config changes.

    The first `broken` test images cannot be decoded.
    """
    random = np.random.default_rng(0)
    for split, count in (("train", 16), ("test", 6)):
        for number in range(count):
            path = folder / split / f"class{number % 2}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            png = tf.io.encode_png(random.integers(0, 256, (8, 8, 3)).astype("uint8")).numpy()
            is_broken = split == "test" and number < broken
            path.write_bytes(png[:60] if is_broken else png)
    fields = {"path": str(folder), "image_size": 8, "max_bad_share": max_bad_share}
    return {
        "data": data.defaults(name="folder", **fields),
        "batch_size": 4,
        "total_steps": 2,
        "eval_every_steps": 1,
        "schedule": {},
    }


def _fail(*_):
    raise RuntimeError("one image\nmore")


class NormalizedPixels(tasks.Classification):
    """Trains a model with BatchNorm, and makes some training batches NaN."""

    def build_model(self, inputs):
        shape = keras.Input(inputs.image_shape)
        layers = [keras.layers.BatchNormalization(), keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential([shape, *layers])

    def losses_and_metrics(self, model, batch, training=False):
        images, *rest = batch
        if training:
            images += ops.where(images[:1, :1, :1, :1] > -0.9, float("nan"), 0.0)
        return super().losses_and_metrics(model, (images, *rest), training)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """Trains for two steps without evaluations, with batches that are larger than the dataset.
    Returns the workdir, the result and the lines of the log."""
    workdir = tmp_path_factory.mktemp("short")
    return workdir, *_start(workdir, batch_size=1440, **SHORT)


def test_first_lines_show_changed_fields(short_run):
    _, _, lines = short_run
    text = "\n".join(lines[:7])
    assert "run: accumulate_steps=2 batch_size=1440 checkpoint_every_steps=4 clip_norm=1.0" in text
    assert "data: shift=1\n" in text and "optimizer: name='adamw'\n" in text
    assert "mlp_dim=12" in text and "rotary" not in text


def test_warns_if_batch_is_larger_than_dataset(short_run):
    _, _, lines = short_run
    assert any("a batch of 1440 images repeats" in line for line in lines)


def test_final_evaluation_can_be_best(short_run):
    workdir, result, _ = short_run
    counters = _read_counters(workdir, 2)
    assert counters["best_step"] == 2
    assert counters["best_value"] == result.metrics["test/accuracy"]


def test_nonfinite_loss_error_names_step_and_checkpoint(tmp_path):
    schedule = {"decay": "constant", "base": 1e30}
    message = (
        "not finite at step 2: a forward pass without dropout is finite.*the last good checkpoint "
        f"is {tmp_path}/checkpoints/000000001[.].*--config.schedule.base.*Received: loss="
    )
    with pytest.raises(Diverged, match=message):
        _start(tmp_path, schedule=schedule, checkpoint_every_steps=1, ema_decay=0.0)
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["000000001"]


@pytest.mark.parametrize(("steps", "written"), [(3, True), (2, False)])
def test_profile_is_written_in_the_third_call(steps, written, tmp_path):
    changes = {"total_steps": steps, "steps_per_call": 1, "schedule": {}, "profile": True}
    _, lines = _start(tmp_path, **changes)
    assert (tmp_path / "tensorboard" / "plugins" / "profile").exists() == written
    start = "wrote a profiler trace: " if written else "warning: no profile"
    assert any(line.startswith(start) for line in lines)


def test_out_of_memory_error_suggests_three_settings(monkeypatch):
    def steps(*_, **__):
        def fail(*_):
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor\nmore")

        return fail

    monkeypatch.setattr(tensorflow_engine, "make_train_steps", steps)
    settings = "accumulate_steps=8 .*remat=True .*precision='mixed_bfloat16' "
    with pytest.raises(ValueError, match=f"{settings}.*Received: OOM when allocating tensor$"):
        _start("ram://run_test/full")  # also tests a remote workdir
    assert tf.io.gfile.exists("ram://run_test/full/metrics.csv")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "float8"}, "`precision` must be one of"),
        ({"seed": 2**32}, r"`seed` must be below 2\*\*31"),
        ({"clip_norm": float("nan")}, "`clip_norm` must be 0 or more"),
        ({"model": {**small_run.MODEL, "classifier": "unpooled"}}, "one row of logits per image"),
        ({"batch_size": 321}, "2 micro-batches.*batch_size=321"),
        ({"early_stop_evals": 2, "eval_every_steps": 0}, "requires `eval_every_steps`"),
        ({"ema_decay": 1.0}, r"`ema_decay` must be in \[0, 1\)"),
        ({"total_epochs": 1.0}, "One of `total_steps` and `total_epochs`"),
        ({"total_steps": 0}, "One of `total_steps` and `total_epochs`"),
        ({"total_steps": -1, "total_epochs": 1.0}, "One of `total_steps` and `total_epochs`"),
        ({"schedule": {"warmup_steps": 11}}, "schedule.warmup_steps=11, total_steps=11"),
        ({"evals": ("knn",)}, "needs an evaluator"),
        ({"best_metric": "precision"}, "one of loss, accuracy; .*best_metric='precision'"),
    ],
)
def test_rejects_invalid_config(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        small_run.start("alone", tmp_path, **changes)


def test_global_policy_and_random_states_are_unchanged(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    result, _ = _start(tmp_path, **SHORT)
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert {variable.dtype for variable in result.model.trainable_variables} == {"float32"}
    assert result.model.get_layer("encoderblock_0").compute_dtype == "float32"


def test_evaluation_counts_and_lists_unreadable_images(tmp_path):
    changes = _write_images(tmp_path / "images", broken=2, max_bad_share=1.0)
    result, lines = _start(tmp_path / "run", **changes)
    assert (result.metrics["test/examples"], result.metrics["test/bad_examples"]) == (4, 2)
    assert sum(line.startswith("test: bad example") for line in lines) == 2  # each is printed once
    assert sum("on 4 of 6 test images; 2 cannot be read" in line for line in lines) == 2
    evaluations = training.read_metrics(tmp_path / "run" / "evaluations.csv")
    np.testing.assert_array_equal(evaluations["bad_examples"], [2, 2])


@pytest.mark.parametrize(
    ("broken", "max_bad_share", "message"),
    [
        (2, 0.2, "More than 20 % of 6 examples are bad"),
        (6, 1.0, "At least one evaluation example must be readable"),
    ],
)
def test_unusable_test_set_is_an_error_before_the_first_step(
    broken, max_bad_share, message, tmp_path
):
    changes = _write_images(tmp_path / "images", broken, max_bad_share)
    lines = []
    with pytest.raises(ValueError, match=message):
        small_run.start("alone", tmp_path / "run", lines.append, **changes)
    assert not lines
    assert not (tmp_path / "run").exists()


def test_repaired_test_set_needs_change(tmp_path):
    changes = _write_images(tmp_path / "images", broken=1, max_bad_share=0.5)
    run = tmp_path / "run"
    small_run.stop_before("step 2/2", run, **changes)
    image = tmp_path / "images/train/class0/0.png"
    shutil.copy(image, tmp_path / "images/test/class0/0.png")
    with pytest.raises(ValueError, match="test set has changed.* --change"):
        small_run.start("alone", run, **changes)
    content = image.read_bytes()
    image.write_bytes(content + b"more")
    with pytest.raises(ValueError, match="dataset has changed"):
        small_run.start("alone", run, change=True, **changes)
    image.write_bytes(content)
    small_run.stop_before("after step 2", run, change=True, **changes)
    lines = []
    training.load_checkpoint(run, lines.append)
    assert lines[0].startswith("using the newest checkpoint")  # the best one is not known
    result = small_run.start("alone", run, **changes)
    assert result.metrics["test/examples"] == 6
    (entry,) = json.loads((run / "changes.json").read_text())
    before, now = (Fingerprint(*values) for values in entry["changes"]["data"])
    assert entry["step"] == 1 and before.data != now.data
    assert before._replace(data=now.data) == now


def test_evaluator_selects_best_checkpoint(tmp_path):
    scores = iter([0.9, 0.5, 0.7, np.float32(0.875)])  # the last one is of the best checkpoint
    toy = small_run.toy_evaluator(lambda *_: {"score": next(scores)})
    result, lines = _start(tmp_path, best_metric="toy/score", checkpoint_every_steps=2, **toy)
    score = result.metrics["test/toy/score"]
    assert score == 0.875 and type(score) is float
    assert result.metrics["train/model_step"] == 5
    assert _read_counters(tmp_path, 11)["best_value"] == 0.9
    assert finished_steps(tmp_path / "checkpoints") == [5, 10, 11]
    assert any(", toy/score 0.9000" in line for line in lines)


@pytest.mark.parametrize(
    ("evaluate", "reason"),
    [(_fail, "RuntimeError: one image"), (lambda *_: {"scores": 1.0}, "Received: scores")],
    ids=["error", "other metric"],
)
def test_metrics_of_a_failed_evaluator_are_nan(evaluate, reason, tmp_path):
    result, lines = _start(tmp_path, **small_run.toy_evaluator(evaluate), **SHORT)
    assert np.isnan(result.metrics["test/toy/score"])
    assert any("toy failed" in line and line.endswith(reason) for line in lines)


def test_resnet_trains(tmp_path):
    changes = {"architecture": "BiTResNet", "model": {"depth": 8}, "batch_size": 16}
    result, lines = _start(tmp_path, **SHORT, **changes)
    assert result.model.name == "bit_resnet"
    assert any("GFLOPs per image, forward pass" in line for line in lines)


@pytest.mark.parametrize(("loss", "expected"), [("sigmoid", [1, 1]), ("softmax", [0, 1])])
def test_loss_decides_the_weight_of_images_without_a_class(loss, expected, monkeypatch):
    def read(index):  # image 0 has no class
        return {"image": tf.zeros((8, 8, 3), tf.uint8), "label": tf.range(index)}

    monkeypatch.setitem(data.SOURCES, "toy", lambda split: data.Source(read, 2, ("a", "b")))
    fields = data.defaults(name="toy", image_size=8)
    config = small_run.config_of(loss=loss, data=fields, batch_size=2)
    ((*_, weights),) = load_inputs(config, print, tasks.get(config)).eval_batches()
    assert weights.numpy().tolist() == expected


def test_resume_refuses_other_splits_and_too_few_steps(tmp_path):
    small_run.stop_before("step  6/11", tmp_path)
    resume = functools.partial(small_run.start, "alone", tmp_path, change=True)
    swapped = data.defaults(name="digits", shift=1, train_split="test", test_split="train")
    with pytest.raises(ValueError, match="with 1437 training .*: 360 training"):
        resume(data=swapped)
    with pytest.raises(ValueError, match="`total_steps` must be at least 5"):
        resume(total_steps=4)


def test_best_checkpoint_follows_a_changed_best_metric(tmp_path):
    model = {**small_run.MODEL, "dropout": 0.0}
    small_run.stop_before("step  6/11", tmp_path, model=model)
    # One rate becomes 0, and another one positive.
    model = {**small_run.MODEL, "attention_dropout": 0.0}
    small_run.start("alone", tmp_path, change=True, model=model, best_metric="loss")
    counters = _read_counters(tmp_path, small_run.STEPS)
    evaluations = training.read_metrics(tmp_path / "evaluations.csv")
    best = int(np.argmin(evaluations["loss"]))
    assert counters["best_metric"] == "loss"
    assert counters["best_step"] == evaluations["step"][best]
    assert counters["best_value"] == pytest.approx(evaluations["loss"][best])


def test_signal_after_the_last_step_stops_the_run(tmp_path):
    sends_signal = iter([True, False])

    def evaluate(*_):
        if next(sends_signal):
            os.kill(os.getpid(), signal.SIGTERM)
        return {"score": 1.0}

    def stop(line):
        if line.startswith("step 2/2"):
            os.kill(os.getpid(), signal.SIGTERM)

    changes = {**SHORT, **small_run.toy_evaluator(evaluate)}
    with pytest.raises(training.Preempted, match="SIGTERM after step 2"):
        small_run.start("alone", tmp_path, stop, **changes)
    with pytest.raises(training.Preempted, match="SIGTERM during the final evaluation"):
        small_run.start("alone", tmp_path, **changes)
    result = small_run.start("alone", tmp_path, **changes)
    assert result.metrics["test/examples"] == 360


def test_engine_can_train_several_runs(tmp_path):
    engine = training.choose_engine(small_run.config_of(**SHORT))
    first, second = (
        small_run.start("alone", tmp_path / name, engine=engine, **SHORT).model.get_weights()
        for name in ("first", "second")
    )
    for one, other in zip(first, second):
        np.testing.assert_array_equal(one, other)


def test_layer_statistics_stay_finite_if_steps_are_skipped(tmp_path):
    changes = {"eval_every_steps": 0, "batch_size": 32, "skip_nonfinite": True}
    task = NormalizedPixels(small_run.config_of(**changes))
    result, _ = _start(tmp_path, custom_task=task, **changes)
    losses = training.read_metrics(tmp_path / "metrics.csv")["loss"]
    assert result.metrics["train/skipped_steps"] == np.isnan(losses).sum() > 0
    assert all(np.isfinite(weight).all() for weight in result.model.get_weights())
