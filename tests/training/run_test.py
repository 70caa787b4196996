"""Tests of `training.run`: short runs and error messages."""

import dataclasses
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

import keras_vit
from keras_vit import data, families, tasks, training
from keras_vit.training import weights as weights_module
from keras_vit.training.loop import Counters, _count_bad, _steps_in_time, is_better, note_best
from keras_vit.training.tensorflow import engine as tensorflow_engine

from . import small_run


def _start(workdir, **changes):
    lines = []
    try:
        return small_run.start("alone", workdir, write=lines.append, **changes), lines
    except ValueError as error:
        return str(error), lines


def test_nonfinite_loss_error_names_step_and_checkpoint(tmp_path):
    schedule = {"decay": "constant", "base": 1e30}
    error, _ = _start(tmp_path, schedule=schedule, checkpoint_every_steps=1, ema_decay=0.0)
    assert error.startswith(
        "Loss or gradients are not finite at step 2: a forward pass without dropout is finite in "
        "every layer"
    )
    assert (
        f"; the last good checkpoint is {tmp_path}/checkpoints/000000001. Try a lower learning "
        "rate (--config.schedule.base), --config.clip_norm=1 or another --config.precision. "
        "Received: loss="
    ) in error
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["000000001"]


@pytest.mark.full
def test_fine_tuning_uses_preprocessing_of_checkpoint(tmp_path):
    sizes = small_run.MODEL
    preprocessing = keras_vit.Preprocessing(mean=(10, 20, 30), std=(40, 50, 0.224 * 255))
    source = keras_vit.VisionTransformer(classes=7, **sizes, preprocessing=preprocessing)
    keras_vit.checkpoints.save(source, tmp_path / "source.npz")
    options = {
        "weights": str(tmp_path / "source.npz"),
        "total_steps": 3,
        "checkpoint_every_steps": 0,
    }
    result, lines = _start(tmp_path / "run", **options)
    assert (
        "images are normalized with mean=(10, 20, 30), std=(40, 50, 57.12), as the weights expect"
        in lines
    )
    trained = keras_vit.preprocessing_of(result.model)
    assert trained.mean == pytest.approx(preprocessing.mean) and trained.std == pytest.approx(
        preprocessing.std
    )
    image = next(iter(result.inputs.eval_batches()))[0][0]
    assert float(tf.reduce_min(image)) == pytest.approx(-30 / 57.12)
    own = data.defaults(name="digits", shift=1, mean=(8.0, 8.0, 8.0), std=(8.0, 8.0, 8.0))
    result, lines = _start(tmp_path / "other", **options, data=own)
    assert any(
        line.startswith("warning: the weights expect images normalized with ") for line in lines
    )
    assert keras_vit.preprocessing_of(result.model).mean == pytest.approx((127.5,) * 3)


def test_partial_data_group_uses_preprocessing_of_weights(tmp_path):
    preprocessing = keras_vit.Preprocessing(mean=(9,) * 3, std=(5,) * 3)
    source = keras_vit.VisionTransformer(classes=7, **small_run.MODEL, preprocessing=preprocessing)
    keras_vit.checkpoints.save(source, tmp_path / "source.npz")
    config = small_run.config_of(data={"name": "digits"}, weights=str(tmp_path / "source.npz"))
    lines = []
    inputs = weights_module.load_inputs(config, lines.append)
    assert (
        inputs.model_preprocessing().mean == pytest.approx((9,) * 3)
        and "as the weights expect" in lines[0]
    )


def test_training_decodes_like_the_library_of_the_weights(tmp_path):
    source = keras_vit.VisionTransformer(
        classes=7, **small_run.MODEL, preprocessing=keras_vit.Preprocessing(library="torchvision")
    )
    keras_vit.checkpoints.save(source, tmp_path / "source.npz")
    changes = {"weights": str(tmp_path / "source.npz"), "batch_size": 8, "total_steps": 3}
    for chosen, expected in (("", "torchvision"), ("vit_jax", "vit_jax")):
        group = {"name": "digits", "library": chosen}
        lines = []
        inputs = weights_module.load_inputs(
            small_run.config_of(data=group, **changes), lines.append
        )
        assert inputs.model_preprocessing().library == inputs.train_options.library == expected
        assert lines == ["JPEG files are decoded as in torchvision, as the weights expect"] * (
            chosen == ""
        )


def test_data_group_uses_preprocessing_of_the_size():
    fields = {
        "data": {"name": "digits"},
        "weights": "laion2b",
        **families.model_config("CLIP-L/14"),
    }
    config = small_run.config_of(**fields)
    lines = []
    inputs = weights_module.load_inputs(config, lines.append)
    assert inputs.model_preprocessing().mean == (127.5,) * 3
    assert lines == ["JPEG files are decoded as in torchvision, as the weights expect"]


@pytest.mark.full
def test_fine_tuning_zeroes_head_and_writes_profile(tmp_path):
    sizes = small_run.MODEL
    source = keras_vit.VisionTransformer(classes=7, **sizes)
    keras_vit.checkpoints.save(source, tmp_path / "source.npz")
    result, lines = _start(
        tmp_path / "run",
        weights=str(tmp_path / "source.npz"),
        total_steps=4,
        steps_per_call=1,
        ema_decay=0.0,
        schedule={"base": 1e-12},
        profile=True,
    )
    model = result.model
    assert model.output_shape == (None, 10)
    for name in ("embedding", "encoderblock_0"):
        for ours, theirs in zip(model.get_layer(name).weights, source.get_layer(name).weights):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-6)
    assert np.abs(model.get_layer("head").kernel.numpy()).max() < 1e-6
    assert result.metrics["train/skipped_steps"] == 0
    assert list((tmp_path / "run" / "tensorboard" / "plugins" / "profile").iterdir())
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
        ({"precision": "float8"}, "`precision` must be one of .*Received: precision='float8'"),
        ({"seed": 2**32}, r"`seed` must be below 2\*\*31. Received: seed=4294967296"),
        ({"clip_norm": float("nan")}, "`clip_norm` must be 0 or more. Received: clip_norm=nan"),
        (
            {"model": {**small_run.config_of().model, "classifier": "unpooled"}},
            "one row of logits per image",
        ),
        (
            {"batch_size": 321},
            "2 micro-batches.*batch_size=321, accumulate_steps=2",
        ),
        (
            {"accumulate_steps": 0},
            "must be 1 or more.*accumulate_steps=0",
        ),
        ({"steps_per_call": 0}, "`steps_per_call` must be 1 or more"),
        ({"eval_every_steps": -1}, "`eval_every_steps` must be 0 or more"),
        (
            {"early_stop_evals": 2, "eval_every_steps": 0},
            "`early_stop_evals` requires `eval_every_steps`",
        ),
        ({"export_model": "first"}, "`export_model` must be one of"),
        ({"ema_decay": 1.0}, r"`ema_decay` must be in \[0, 1\). Received: ema_decay=1.0"),
        ({"total_epochs": 1.0}, "One of `total_steps` and `total_epochs`"),
        ({"loss": "hinge"}, "`loss` must be one of"),
        (
            {"schedule": {"warmup_steps": 11}},
            r"config.batch_size\).*schedule.warmup_steps=11, total",
        ),
    ],
)
def test_rejects_invalid_config(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        small_run.start("alone", tmp_path, **changes)


@pytest.mark.one_backend
def test_weights_are_downloaded_before_model_is_built(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        tasks.Classification, "build_model", lambda *_: pytest.fail("the model was built")
    )
    with pytest.raises(
        ConnectionError,
        match=r"could not be downloaded .*: http://127.0.0.1:9",
    ):
        small_run.start("alone", tmp_path / "run", write=str, weights="http://127.0.0.1:9/x.npz")


@pytest.mark.full
def test_rgb_run_starts_from_one_channel_weights(tmp_path):
    sizes = small_run.MODEL
    gray = keras_vit.VisionTransformer(
        classes=7, **{**sizes, "input_shape": (*sizes["input_shape"][:2], 1)}
    )
    keras_vit.checkpoints.save(gray, tmp_path / "gray.npz")
    arguments = {
        "weights": str(tmp_path / "gray.npz"),
        "total_steps": 1,
        "schedule": {"base": 1e-12},
        "ema_decay": 0.0,
    }
    error, _ = _start(tmp_path / "refused", **arguments)
    assert "`weights_channels` in a config" in error
    result, lines = _start(tmp_path / "run", weights_channels="sum", **arguments)
    kernel, expected = (m.get_layer("embedding").kernel.numpy() for m in (result.model, gray))
    np.testing.assert_allclose(
        kernel.reshape(-1, 3, kernel.shape[1])[:, 1], expected / 3, atol=1e-6
    )
    assert any('adapted embedding/kernel from 1 to 3 channels by "sum"' in line for line in lines)


def test_global_policy_and_random_states_are_unchanged(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    result, _ = _start(tmp_path, total_steps=2, eval_every_steps=0, schedule={})
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert {variable.dtype for variable in result.model.trainable_variables} == {"float32"}
    assert result.model.get_layer("encoderblock_0").compute_dtype == "float32"
    assert result.inputs.test.num_examples == 360


def _folder(path, broken):
    """Writes 16 training and 6 test images of two classes, and returns config changes.

    The first `broken` test images cannot be decoded.
    """
    random = np.random.default_rng(0)
    for split, count in (("train", 16), ("test", 6)):
        for i in range(count):
            (path / split / f"class{i % 2}").mkdir(parents=True, exist_ok=True)
            png = tf.io.encode_png(random.integers(0, 256, (8, 8, 3)).astype("uint8")).numpy()
            is_broken = split == "test" and i < broken
            (path / split / f"class{i % 2}" / f"{i}.png").write_bytes(
                png[:60] if is_broken else png
            )
    changes = {
        "batch_size": 4,
        "accumulate_steps": 1,
        "total_steps": 2,
        "eval_every_steps": 1,
        "schedule": {},
    }
    return {**changes, "ema_decay": 0.0, "clip_norm": 0.0, "optimizer": {"name": "sgd"}}


@pytest.mark.parametrize(
    "broken", [2, *[pytest.param(broken, marks=pytest.mark.slow) for broken in (0, 6)]]
)
@pytest.mark.full
def test_evaluation_counts_and_lists_unreadable_images(broken, tmp_path):
    changes = _folder(tmp_path / "images", broken)
    fields = data.defaults(
        name="folder", path=str(tmp_path / "images"), image_size=8, max_bad_share=1.0
    )
    result, lines = _start(tmp_path / "run", data=fields, **changes)
    if broken == 6:
        assert "At least one evaluation example must be readable" in result
        return
    assert (
        result.metrics["test/examples"] == 6 - broken
        and result.metrics["test/bad_examples"] == broken
    )
    # Each is printed once.
    assert len([line for line in lines if line.startswith("test: bad example")]) == broken
    ending = "on 6 test images" if not broken else "on 4 of 6 test images; 2 cannot be read"
    assert sum(line.startswith("after step") and line.endswith(ending) for line in lines) == 2
    header = (tmp_path / "run" / "evaluations.csv").read_text().splitlines()[0]
    assert header == "step,loss,accuracy,examples,bad_examples"


@pytest.mark.full
def test_too_many_unreadable_test_images_are_an_error(tmp_path):
    changes = _folder(tmp_path / "images", 2)
    fields = data.defaults(
        name="folder", path=str(tmp_path / "images"), image_size=8, max_bad_share=0.2
    )
    error, lines = _start(tmp_path / "run", data=fields, **changes)
    assert "More than 20 % of 6 examples are bad" in error and not any(
        line.startswith("step") for line in lines
    )


def test_unusable_test_set_is_an_error_before_the_first_step(tmp_path):
    changes = _folder(tmp_path / "images", 6)
    fields = data.defaults(
        name="folder", path=str(tmp_path / "images"), image_size=8, max_bad_share=1.0
    )
    error, lines = _start(tmp_path / "run", data=fields, **changes)
    assert "At least one evaluation example must be readable" in error and not lines
    assert not (tmp_path / "run").exists()


def test_repaired_test_set_needs_change(tmp_path):
    def stop(line):
        if line.startswith("after step 1"):
            raise KeyError

    changes = _folder(tmp_path / "images", 1)
    fields = data.defaults(
        name="folder", path=str(tmp_path / "images"), image_size=8, max_bad_share=0.5
    )
    with pytest.raises(KeyError):
        small_run.start("alone", tmp_path / "run", stop, data=fields, **changes)
    repaired = tmp_path / "images/test/class0/0.png"
    train = tmp_path / "images/train/class0/0.png"
    repaired.write_bytes(train.read_bytes())
    config = small_run.config_of(data=fields, **changes)

    def resume(change):
        workdir = training.Workdir(tmp_path / "run", config.to_dict(), change=change)
        return training.run(config, workdir, lambda line: None)

    with pytest.raises(
        ValueError,
        match="pass --change .*: 16 training and 6 test",
    ):
        resume(False)
    image = train.read_bytes()
    train.write_bytes(image + b"more")
    with pytest.raises(ValueError, match="The dataset has changed"):
        resume(True)
    train.write_bytes(image)
    assert resume(True).metrics["test/examples"] == 6
    (entry,) = json.loads((tmp_path / "run" / "changes.json").read_text())
    before, now = entry["changes"]["data"]
    assert (
        entry["step"] == 1 and before[3] != now[3] and before[:3] == now[:3] and before[4] == now[4]
    )


def test_evaluator_metric_can_select_best_checkpoint(tmp_path):
    scores = iter([0.9, 0.5, 0.7, 0.8])  # the last one is of the best checkpoint
    toy = types.SimpleNamespace(
        METRICS=("score",), evaluate=lambda model, inputs, engine: {"score": next(scores)}
    )
    evaluators = {"toy": toy}
    changes = {"evals": ("toy",), "best_metric": "toy/score", "checkpoint_every_steps": 2}
    result, lines = _start(tmp_path, evaluators=evaluators, **changes)
    assert (
        (tmp_path / "evaluations.csv")
        .read_text()
        .startswith("step,loss,accuracy,examples,bad_examples,toy/score\n5,")
    )
    assert result.metrics["test/toy/score"] == 0.8 and result.metrics["train/model_step"] == 5
    assert any(", toy/score 0.9000 on 360 test images" in line for line in lines)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "000000005",
        "000000010",
        "000000011",
    ]


def test_failing_evaluator_does_not_end_the_run(tmp_path):
    def fail(*_):
        raise RuntimeError("one image\nmore")

    functions = {
        "good": lambda *_: {"score": np.float32(0.5)},
        "bad": fail,
        "odd": lambda *_: {"scores": 1.0},
    }
    evaluators = {
        name: types.SimpleNamespace(METRICS=("score",), evaluate=function)
        for name, function in functions.items()
    }
    changes = {
        "evals": tuple(functions),
        "best_metric": "good/score",
        "total_steps": 5,
        "schedule": {},
    }
    result, lines = _start(tmp_path, evaluators=evaluators, **changes)
    assert (
        result.metrics["test/good/score"] == 0.5
        and type(result.metrics["test/good/score"]) is float
    )
    assert np.isnan([result.metrics["test/bad/score"], result.metrics["test/odd/score"]]).all()
    assert (
        "warning: the evaluator bad failed, so its metrics are NaN: RuntimeError: one image"
        in lines
    )
    assert any(
        "odd failed" in line and "must return score. Received: scores" in line for line in lines
    )
    counters = json.loads((tmp_path / "checkpoints" / "000000005" / "finished").read_text())
    assert counters["best_value"] == 0.5


def test_run_first_prints_changed_fields(tmp_path):
    _, lines = _start(tmp_path, total_steps=1, eval_every_steps=0, schedule={})
    first = "\n".join(lines[:7])
    assert (
        "  run: accumulate_steps=2 batch_size=320 checkpoint_every_steps=4 clip_norm=1.0 "
        "ema_decay=0.5" in first
    )
    assert max(map(len, first.splitlines())) <= 100
    assert "data: shift=1\n" in first and "optimizer: name='adamw'\n" in first
    assert "precision=" not in first and "flip=" not in first and "randaugment" not in first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"evals": ("knn",)},
            r"needs an evaluator.*\('knn',\), evaluators=\(\)",
        ),
        ({"evals": ("a", "a")}, r"needs an evaluator"),
        (
            {"best_metric": "precision"},
            "one of loss, accuracy; .*best_metric='precision'",
        ),
        ({"best_metric": "knn/accuracy"}, r"Received: best_metric='knn/accuracy', evals=\(\)"),
        ({"task": "detection"}, "`task` must be one of"),
    ],
)
def test_rejects_unknown_evals_metric_or_task(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        small_run.start("alone", tmp_path, **changes)


@pytest.mark.full
def test_resnet_trains_resumes_and_prints_cost(tmp_path):
    changes = {
        "architecture": "BiTResNet",
        "model": {"depth": 8},
        "batch_size": 16,
        "total_steps": 2,
        "accumulate_steps": 1,
        "checkpoint_every_steps": 1,
        "eval_every_steps": 0,
        "steps_per_call": 1,
        "schedule": {"base": 1e-3},
    }
    lines = []

    def stop(line):
        lines.append(line)
        if line.startswith("step 2/2"):
            raise KeyError

    with pytest.raises(KeyError):
        small_run.start("alone", tmp_path, stop, **changes)
    assert any("GFLOPs per image, forward pass" in line for line in lines)
    result, lines = _start(tmp_path, **changes)
    assert any(line.startswith("resuming from step 1,") for line in lines)
    assert result.model.name == "bit_resnet" and 0 <= result.metrics["test/accuracy"] <= 1


def test_bad_examples_are_summed_over_hosts():
    """At most 4 of 100 examples may be bad in an epoch."""
    source = data.arrays(np.zeros((100, 2, 2, 3), "uint8"), np.zeros(100, int), ["a"])
    inputs = data.InputPipeline(source, source, {}, 10, 0, 0.04)
    inputs._failures["train"].update({10: [1, 2], 12: [3]})
    bad_examples = inputs.bad_examples("train", lambda line: None)
    counters = Counters()
    engine = types.SimpleNamespace(
        gather_hosts=lambda values: [values, [0] + [1] * (len(values) - 1)]
    )
    assert (
        _count_bad(engine, counters, bad_examples, 10, 2) == [3, 1]
        and counters.all_bad_examples == 4
    )
    with pytest.raises(
        ValueError, match="More than 4 % of 100 .*Received: 6 bad examples in one epoch"
    ):
        _count_bad(engine, counters, bad_examples, 12, 1)
    assert _count_bad(engine, counters, bad_examples, 20, 1) == [1]  # a new epoch starts at step 20


def test_wrong_label_stops_all_hosts():
    source = data.arrays(np.zeros((4, 2, 2, 3), "uint8"), np.zeros(4, int), ["a"])
    inputs = data.InputPipeline(source, source, {}, 4, 0, 1.0)
    inputs._failures["train"][0] = [-2]  # stands for example 0
    reports = []

    def gather(values):
        reports.append(values)
        return reports

    engine = types.SimpleNamespace(gather_hosts=gather)
    with pytest.raises(ValueError, match="from 0 to 0.*label=0 in example 0"):
        _count_bad(engine, Counters(), inputs.bad_examples("train"), 0, 2)
    with pytest.raises(ValueError, match="another host"):
        _count_bad(engine, Counters(), inputs.bad_examples("train"), 0, 2)
    assert reports == [[1, 0, 0], [0, 0, 0]]


def test_resumed_run_does_not_count_repeats_of_sampling():
    source = data.arrays(np.zeros((50, 2, 2, 3), "uint8"), np.zeros(50, int), ["a"])
    engine = types.SimpleNamespace(gather_hosts=lambda values: [values])
    counters = Counters()
    for step in (11, 12):
        inputs = data.InputPipeline(source, source, {"sampling": "balanced"}, 10, 0, 0.01)
        inputs._failures["train"][step] = [7, 7]
        bad_examples = inputs.bad_examples("train", lambda line: None)
        assert _count_bad(engine, counters, bad_examples, step, 1) == [1]


def test_resumed_run_continues_to_count_bad_examples():
    source = data.arrays(np.zeros((100, 2, 2, 3), "uint8"), np.zeros(100, int), ["a"])
    engine = types.SimpleNamespace(gather_hosts=lambda values: [values])
    counters = Counters()
    for step, numbers in ((11, [1, 2]), (12, [3])):  # step 10 starts an epoch
        inputs = data.InputPipeline(source, source, {}, 10, 0, 0.03)
        inputs._failures["train"][step] = numbers
        _count_bad(engine, counters, inputs.bad_examples("train", lambda line: None), step, 1)
        # As stored in a checkpoint.
        counters = Counters(**json.loads(json.dumps(dataclasses.asdict(counters))))
    inputs._failures["train"][13] = [4]
    with pytest.raises(ValueError, match="Received: 4 bad examples in one epoch"):
        _count_bad(engine, counters, inputs.bad_examples("train", lambda line: None), 13, 1)


@pytest.mark.parametrize(
    ("loss", "weights"), [("sigmoid", [1, 1, 1, 1]), ("softmax", [0, 1, 0, 1])]
)
def test_loss_decides_the_weight_of_images_without_a_class(loss, weights, monkeypatch):
    read = lambda i: {"image": tf.zeros((8, 8, 3), tf.uint8), "label": tf.range(i % 2)}  # noqa: E731
    source = data.Source(read, 4, ("a", "b"))
    monkeypatch.setitem(data.SOURCES, "toy", lambda split: source)
    fields = data.defaults(name="toy", image_size=8)
    config = small_run.config_of(loss=loss, data=fields, batch_size=4)
    ((*_, actual),) = weights_module.load_inputs(config, print).eval_batches()
    assert actual.numpy().tolist() == weights


def test_repeats_of_one_bad_example_are_tolerated():
    source = data.arrays(np.zeros((50, 2, 2, 3), "uint8"), np.zeros(50, int), ["a"])
    inputs = data.InputPipeline(source, source, {}, 128, 0, 0.01)
    inputs._failures["train"][0] = [7, 7, 7]  # the first batch spans three epochs
    engine = types.SimpleNamespace(gather_hosts=lambda values: [values])
    assert _count_bad(
        engine, Counters(), inputs.bad_examples("train", lambda line: None), 0, 1
    ) == [3]


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
    with pytest.raises(
        ValueError,
        match="with 1437 training .*: 360 training and 1437",
    ):
        resume(data=swapped)
    with pytest.raises(
        ValueError, match="`total_steps` must be at least 5, .*Received: total_steps=4"
    ):
        resume(total_steps=4)
    resume(best_metric="accuracy")
    counters = json.loads((tmp_path / "checkpoints" / "000000011" / "finished").read_text())
    evaluations = training.read_metrics(tmp_path / "evaluations.csv")
    best = int(np.argmax(evaluations["accuracy"]))
    assert (
        counters["best_metric"] == "accuracy" and counters["best_step"] == evaluations["step"][best]
    )
    # The accuracy, not the loss.
    assert counters["best_value"] == pytest.approx(evaluations["accuracy"][best])


def test_signal_after_the_last_step_stops_the_run(tmp_path):
    def stop(line):
        if line.startswith("step 2/2"):
            os.kill(os.getpid(), signal.SIGTERM)

    short = {"total_steps": 2, "eval_every_steps": 0, "schedule": {"base": 1e-2}}
    with pytest.raises(training.Preempted, match="SIGTERM"):
        small_run.start("alone", tmp_path, stop, **short)
    evaluators = {
        "stop": types.SimpleNamespace(
            METRICS=("x",), evaluate=lambda *_: stop("step 2/2") or {"x": 1.0}
        )
    }
    with pytest.raises(
        training.Preempted, match="SIGTERM during the final evaluation; training is saved"
    ):
        small_run.start(
            "alone", tmp_path / "other", evaluators=evaluators, evals=("stop",), **short
        )
    assert (
        small_run.start("alone", tmp_path, lambda line: None, **short).metrics["test/examples"]
        == 360
    )


def test_engine_can_train_several_runs(tmp_path):
    config = small_run.config_of(total_steps=2, eval_every_steps=0, schedule={"base": 1e-2})
    engine = training.choose_engine(config)
    results = []
    for name in "ab":
        workdir = training.Workdir(tmp_path / name, config.to_dict())
        results.append(
            training.run(config, workdir, lambda line: None, engine=engine).model.get_weights()
        )
    for first, second in zip(*results):
        np.testing.assert_array_equal(first, second)


def test_lower_loss_breaks_ties_of_best_metric():
    counters = Counters()
    best = []
    for step, (accuracy, loss) in enumerate(
        [(0.5, 9.0), (0.5, 0.9), (0.5, 1.0), (0.6, 2.0), (0.6, float("nan"))]
    ):
        counters.step = step
        note_best(counters, "accuracy", {"accuracy": accuracy, "loss": loss})
        best.append(counters.best_step)
    assert best == [0, 1, 1, 3, 3]


def test_final_evaluation_can_be_best(tmp_path):
    config = small_run.config_of(total_steps=3, eval_every_steps=0)
    result = training.run(config, training.Workdir(tmp_path, config.to_dict()), lambda line: None)
    counters = json.loads((tmp_path / "checkpoints" / "000000003" / "finished").read_text())
    assert counters["best_step"] == 3 and counters["best_value"] == result.metrics["test/accuracy"]


def test_warns_if_batch_is_larger_than_dataset(tmp_path):
    _, lines = _start(tmp_path, batch_size=1440, total_steps=1, schedule={}, eval_every_steps=0)
    assert any(
        "a batch of 1440 images repeats" in line and "--config.batch_size" in line for line in lines
    )
    assert any("mlp_dim=12" in line for line in lines) and not any(
        "rotary" in line for line in lines
    )


def test_nan_is_never_best():
    nan = float("nan")
    assert (
        is_better("loss", 0.1, nan)
        and not is_better("loss", nan, 0.1)
        and is_better("loss", 0.1, 0.2)
    )
    assert (
        is_better("accuracy", 0.2, 0.1)
        and not is_better("accuracy", nan, 0.1)
        and is_better("accuracy", 0.1, None)
    )


@pytest.mark.full
def test_trained_model_has_preprocessing_of_data(tmp_path, monkeypatch):
    def load(model, *_, **__):
        layer = model.get_layer("expected_images")
        layer.preprocessing = dataclasses.replace(layer.preprocessing, crop_fraction=0.5)

    monkeypatch.setattr(weights_module, "load", load)
    weights = tmp_path / "weights.npz"
    keras_vit.checkpoints.save(keras_vit.VisionTransformer(classes=7, **small_run.MODEL), weights)
    result, _ = _start(
        tmp_path / "run", weights=str(weights), total_steps=1, eval_every_steps=0, schedule={}
    )
    assert not isinstance(result, str), result
    assert keras_vit.preprocessing_of(result.model) == result.inputs.model_preprocessing()


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
            broken = (
                ops.where(images[:1, :1, :1, :1] > -0.9, float("nan"), 0.0) if training else 0.0
            )
            return super().losses_and_metrics(model, (images + broken, labels, weights), training)

    changes = {
        "total_steps": 6,
        "eval_every_steps": 0,
        "skip_nonfinite": True,
        "ema_decay": 0.0,
        "clip_norm": 0.0,
    }
    changes |= {"accumulate_steps": 1, "schedule": {"base": 1e-3}, "batch_size": 32}
    config = small_run.config_of("alone", **changes)
    result, _ = _start(tmp_path, custom_task=Normalized(config), **changes)
    assert all(np.isfinite(weight).all() for weight in result.model.get_weights())


def _stop_before_training(*_, **__):
    raise ValueError("stop before the first step")


def test_calls_take_ten_seconds_on_the_slowest_host():
    def steps(seconds, number, other_hosts=()):
        hosts = [(int(1000 * other),) for other in other_hosts]
        engine = types.SimpleNamespace(
            num_hosts=1 + len(hosts), gather_hosts=lambda values: [tuple(values), *hosts]
        )
        return _steps_in_time(engine, seconds, number)

    assert (steps(2.0, 4), steps(40.0, 1), steps(0.0, 100)) == (19, 1, 1_000_000)
    assert steps(1.0, 10, [2.0]) == 25  # a signal stops two hosts after the next call
