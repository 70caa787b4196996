"""Tests of `training.run`: short runs and error messages."""

import json
import os
import random
import signal
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from ml_collections import ConfigDict

from keras_vit import data, tasks, training
from keras_vit.training import weights as weights_module
from keras_vit.training.tensorflow import engine as tensorflow_engine

from . import small_run


def _start(workdir, **changes):
    """Returns the result of a run, or the message of its error, and the lines of its log."""
    lines = []
    try:
        return small_run.start("alone", workdir, write=lines.append, **changes), lines
    except ValueError as error:
        return str(error), lines


def _read_counters(workdir, step):
    return json.loads((workdir / "checkpoints" / f"{step:09}" / "finished").read_text())


SHORT = {"total_steps": 2, "eval_every_steps": 0, "schedule": {"base": 1e-2}}


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
    assert "mlp_dim=12" in text
    for default in ("precision=", "flip=", "randaugment", "rotary"):
        assert default not in text
    assert max(map(len, text.splitlines())) <= 100


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
    error, _ = _start(tmp_path, schedule=schedule, checkpoint_every_steps=1, ema_decay=0.0)
    assert "not finite at step 2: a forward pass without dropout is finite" in error
    assert f"the last good checkpoint is {tmp_path}/checkpoints/000000001." in error
    assert "--config.schedule.base" in error and "Received: loss=" in error
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["000000001"]


@pytest.mark.full
def test_profile_is_written(tmp_path):
    _, lines = _start(tmp_path, total_steps=3, steps_per_call=1, profile=True)
    assert list((tmp_path / "tensorboard" / "plugins" / "profile").iterdir())
    assert any(line.startswith("wrote a profiler trace: tensorboard --logdir ") for line in lines)
    assert any("GFLOPs per image, forward pass" in line for line in lines)


def test_out_of_memory_error_suggests_three_settings(monkeypatch):
    def steps(*_, **__):
        def fail(*_):
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor\nmore")

        return fail

    monkeypatch.setattr(tensorflow_engine, "make_train_steps", steps)
    error, _ = _start("ram://run_test/full")  # also tests a remote workdir
    assert tf.io.gfile.exists("ram://run_test/full/metrics.csv")
    for setting in ("accumulate_steps=8", "remat=True", "precision='mixed_bfloat16'"):
        assert setting in error
    assert error.endswith("Received: OOM when allocating tensor")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "float8"}, "`precision` must be one of"),
        ({"seed": 2**32}, r"`seed` must be below 2\*\*31"),
        ({"clip_norm": float("nan")}, "`clip_norm` must be 0 or more"),
        ({"model": {**small_run.MODEL, "classifier": "unpooled"}}, "one row of logits per image"),
        ({"batch_size": 321}, "2 micro-batches.*batch_size=321"),
        ({"accumulate_steps": 0}, "must be 1 or more.*accumulate_steps=0"),
        ({"early_stop_evals": 2, "eval_every_steps": 0}, "requires `eval_every_steps`"),
        ({"ema_decay": 1.0}, r"`ema_decay` must be in \[0, 1\)"),
        ({"total_epochs": 1.0}, "One of `total_steps` and `total_epochs`"),
        ({"total_epochs": -1.0}, "One of `total_steps` and `total_epochs`"),
        ({"total_steps": -1, "total_epochs": 1.0}, "One of `total_steps` and `total_epochs`"),
        ({"loss": "hinge"}, "`loss` must be one of"),
        ({"task": "detection"}, "`task` must be one of"),
        ({"schedule": {"warmup_steps": 11}}, "schedule.warmup_steps=11, total_steps=11"),
        ({"evals": ("knn",)}, r"needs an evaluator.*evaluators=\(\)"),
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
        "accumulate_steps": 1,
        "total_steps": 2,
        "eval_every_steps": 1,
        "schedule": {},
        "ema_decay": 0.0,
        "clip_norm": 0.0,
        "optimizer": {"name": "sgd"},
    }


@pytest.mark.full
def test_evaluation_counts_and_lists_unreadable_images(tmp_path):
    changes = _write_images(tmp_path / "images", broken=2, max_bad_share=1.0)
    result, lines = _start(tmp_path / "run", **changes)
    assert (result.metrics["test/examples"], result.metrics["test/bad_examples"]) == (4, 2)
    # Each is printed once.
    assert sum(line.startswith("test: bad example") for line in lines) == 2
    evaluations = [line for line in lines if line.startswith("after step")]
    assert len(evaluations) == 2
    assert all("on 4 of 6 test images; 2 cannot be read" in line for line in evaluations)
    header = (tmp_path / "run" / "evaluations.csv").read_text().splitlines()[0]
    assert header == "step,loss,accuracy,examples,bad_examples"


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
    error, lines = _start(tmp_path / "run", **changes)
    assert message in error and not lines
    assert not (tmp_path / "run").exists()


def test_repaired_test_set_needs_change(tmp_path):
    def stop(line):
        if line.startswith("after step 1"):
            raise KeyError

    changes = _write_images(tmp_path / "images", broken=1, max_bad_share=0.5)
    with pytest.raises(KeyError):
        small_run.start("alone", tmp_path / "run", stop, **changes)
    repaired = tmp_path / "images/test/class0/0.png"
    train = tmp_path / "images/train/class0/0.png"
    image = train.read_bytes()
    repaired.write_bytes(image)
    config = small_run.config_of(**changes)

    def resume(change):
        workdir = training.Workdir(tmp_path / "run", config.to_dict(), change=change)
        return training.run(config, workdir, lambda line: None)

    with pytest.raises(ValueError, match="test set has changed.* --change"):
        resume(False)
    train.write_bytes(image + b"more")
    with pytest.raises(ValueError, match="dataset has changed"):
        resume(True)
    train.write_bytes(image)
    assert resume(True).metrics["test/examples"] == 6
    (entry,) = json.loads((tmp_path / "run" / "changes.json").read_text())
    before, now = entry["changes"]["data"]
    assert entry["step"] == 1 and before[3] != now[3]
    assert before[:3] == now[:3] and before[4] == now[4]


def test_evaluators_select_best_checkpoint_and_may_fail(tmp_path):
    scores = iter([0.9, 0.5, 0.7, np.float32(0.875)])  # the last one is of the best checkpoint

    def fail(*_):
        raise RuntimeError("one image\nmore")

    functions = {
        "good": lambda *_: {"score": next(scores)},
        "bad": fail,
        "odd": lambda *_: {"scores": 1.0},
    }
    evaluators = {
        name: types.SimpleNamespace(METRICS=("score",), evaluate=function)
        for name, function in functions.items()
    }
    changes = {"evals": tuple(functions), "best_metric": "good/score", "checkpoint_every_steps": 2}
    result, lines = _start(tmp_path, evaluators=evaluators, **changes)
    metrics = result.metrics
    assert metrics["test/good/score"] == 0.875 and type(metrics["test/good/score"]) is float
    assert np.isnan([metrics["test/bad/score"], metrics["test/odd/score"]]).all()
    assert metrics["train/model_step"] == 5
    assert _read_counters(tmp_path, 11)["best_value"] == 0.9
    checkpoints = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert checkpoints == ["000000005", "000000010", "000000011"]
    header = (tmp_path / "evaluations.csv").read_text().splitlines()[0]
    assert header.endswith("examples,bad_examples,good/score,bad/score,odd/score")
    assert any(", good/score 0.9000" in line for line in lines)
    assert any("bad failed" in line and line.endswith("RuntimeError: one image") for line in lines)
    assert any("odd failed" in line and "Received: scores" in line for line in lines)


@pytest.mark.full
def test_resnet_trains(tmp_path):
    changes = {
        "architecture": "BiTResNet",
        "model": {"depth": 8},
        "batch_size": 16,
        "accumulate_steps": 1,
    }
    result, lines = _start(tmp_path, **{**SHORT, "total_steps": 1, **changes})
    assert any("GFLOPs per image, forward pass" in line for line in lines)
    assert result.model.name == "bit_resnet" and 0 <= result.metrics["test/accuracy"] <= 1


@pytest.mark.parametrize(
    ("loss", "expected"), [("sigmoid", [1, 1, 1, 1]), ("softmax", [0, 1, 0, 1])]
)
def test_loss_decides_the_weight_of_images_without_a_class(loss, expected, monkeypatch):
    def read(index):
        return {"image": tf.zeros((8, 8, 3), tf.uint8), "label": tf.range(index % 2)}

    source = data.Source(read, 4, ("a", "b"))
    monkeypatch.setitem(data.SOURCES, "toy", lambda split: source)
    fields = data.defaults(name="toy", image_size=8)
    config = small_run.config_of(loss=loss, data=fields, batch_size=4)
    ((*_, weights),) = weights_module.load_inputs(config, print).eval_batches()
    assert weights.numpy().tolist() == expected


@pytest.mark.full
def test_resume_with_changed_config(tmp_path):
    def stop(line):
        if line.startswith("step  6/11"):
            raise KeyError

    with pytest.raises(KeyError):
        small_run.start("alone", tmp_path, stop, model={**small_run.MODEL, "dropout": 0.0})
    model = {**small_run.MODEL, "attention_dropout": 0.0}  # one rate becomes 0, another positive
    config = small_run.config_of("alone", model=model).to_dict()

    def resume(**changes):
        changed = ConfigDict({**config, **changes})
        workdir = training.Workdir(tmp_path, changed.to_dict(), change=True)
        return training.run(changed, workdir, lambda line: None)

    swapped = {**config["data"], "train_split": "test", "test_split": "train"}
    with pytest.raises(ValueError, match="with 1437 training .*: 360 training"):
        resume(data=swapped)
    with pytest.raises(ValueError, match="`total_steps` must be at least 5"):
        resume(total_steps=4)
    resume(best_metric="accuracy")
    counters = _read_counters(tmp_path, 11)
    evaluations = training.read_metrics(tmp_path / "evaluations.csv")
    best = int(np.argmax(evaluations["accuracy"]))
    assert counters["best_metric"] == "accuracy"
    assert counters["best_step"] == evaluations["step"][best]
    # The accuracy, not the loss.
    assert counters["best_value"] == pytest.approx(evaluations["accuracy"][best])


def test_signal_after_the_last_step_stops_the_run(tmp_path):
    sends_signal = iter([True, False])

    def evaluate(*_):
        if next(sends_signal):
            os.kill(os.getpid(), signal.SIGTERM)
        return {"x": 1.0}

    def stop(line):
        if line.startswith("step 2/2"):
            os.kill(os.getpid(), signal.SIGTERM)

    evaluators = {"stop": types.SimpleNamespace(METRICS=("x",), evaluate=evaluate)}
    changes = {**SHORT, "evaluators": evaluators, "evals": ("stop",)}
    with pytest.raises(training.Preempted, match="SIGTERM after step 2"):
        small_run.start("alone", tmp_path, stop, **changes)
    with pytest.raises(training.Preempted, match="SIGTERM during the final evaluation"):
        small_run.start("alone", tmp_path, **changes)
    result = small_run.start("alone", tmp_path, **changes)
    assert result.metrics["test/examples"] == 360


def test_engine_can_train_several_runs(tmp_path):
    config = small_run.config_of(**SHORT)
    engine = training.choose_engine(config)
    weights = []
    for name in "ab":
        workdir = training.Workdir(tmp_path / name, config.to_dict())
        result = training.run(config, workdir, lambda line: None, engine=engine)
        weights.append(result.model.get_weights())
    for first, second in zip(*weights):
        np.testing.assert_array_equal(first, second)


@pytest.mark.full
def test_layer_statistics_stay_finite_if_steps_are_skipped(tmp_path):
    class Normalized(tasks.Classification):
        """Replaces some training batches with NaN."""

        def build_model(self, inputs):
            layers = [
                keras.layers.Flatten(),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(10),
            ]
            return keras.Sequential([keras.Input(inputs.image_shape), *layers])

        def losses_and_metrics(self, model, batch, training=False):
            images, labels, weights = batch
            if training:
                images += ops.where(images[:1, :1, :1, :1] > -0.9, float("nan"), 0.0)
            return super().losses_and_metrics(model, (images, labels, weights), training)

    changes = {
        "total_steps": 6,
        "eval_every_steps": 0,
        "skip_nonfinite": True,
        "ema_decay": 0.0,
        "clip_norm": 0.0,
        "accumulate_steps": 1,
        "schedule": {"base": 1e-3},
        "batch_size": 32,
    }
    task = Normalized(small_run.config_of(**changes))
    result, _ = _start(tmp_path, custom_task=task, **changes)
    losses = training.read_metrics(tmp_path / "metrics.csv")["loss"]
    assert result.metrics["train/skipped_steps"] == np.isnan(losses).sum() > 0
    assert all(np.isfinite(weight).all() for weight in result.model.get_weights())
