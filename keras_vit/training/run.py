"""Runs training, from a config to a trained and evaluated model."""

import contextlib
import dataclasses
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from ml_collections import ConfigDict

from keras_vit import data, files, tasks, terminal
from keras_vit.checkpoints import fetch, find_preprocessing, load
from keras_vit.layers import InputPreprocessing
from keras_vit.preprocessing import Preprocessing
from keras_vit.training import validation
from keras_vit.training.checkpoint_manager import MARKER, CheckpointManager, finished_steps
from keras_vit.training.engine import Engine, step_metrics
from keras_vit.training.engines import choose_engine
from keras_vit.training.loop import Counters, check_test_examples, make_evaluate, note_best, train
from keras_vit.training.metrics import MetricWriter
from keras_vit.training.preemption import raise_on_stop_signals
from keras_vit.training.progress import Progress, run_summary
from keras_vit.training.workdir import Workdir, read_config, read_model

log = logging.getLogger(__name__)

_LARGE_MODEL = 1_000_000  # number of parameters; smaller models train too fast to need advice about speed

# Replaces `model.json` in a run of an older version, which decoded and cropped images as in `vit_jax`.
_OLD = {"weights": {"library": "vit_jax"}}


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of a training run.

    Attributes:
        model: the trained `keras.Model`; its weights are the EMA if `config.ema_decay` is positive.
        inputs: the `data.InputPipeline` used for training and evaluation.
        metrics: dict of numbers: `test/NAME` for each of `task.evaluation_metrics`, such as "loss", and each metric of
            the evaluators, `test/examples` (number of scored images), `test/bad_examples` (number of unreadable
            images), `train/bad_examples`, `train/skipped_steps`, `train/seconds` and `train/images_per_second`; NaN
            if an evaluator failed.
    """

    model: keras.Model
    inputs: data.InputPipeline
    metrics: dict


def run(
    config: ConfigDict, workdir: Workdir, write: Callable[[str], object] = terminal.write, *,
    task: tasks.Task | None = None, evaluators: Mapping[str, Any] | None = None, engine: Engine | None = None,
    check: Callable[[keras.Model, data.InputPipeline], object] | None = None, start: float | None = None,
) -> RunResult:  # fmt: skip
    """Trains and evaluates a model according to a config, or resumes an interrupted run in the workdir.

    Keras' global dtype policy and the global random states of Python and NumPy are restored after the model is built.

    Args:
        config: the config, as in `keras_vit/configs/digits.py`; `keras_vit/recipes/defaults.py` lists the fields.
        workdir: the run's `Workdir`.
        write: called with each log line.
        task: a `tasks.Task` to use instead of the task named by `config.task`.
        evaluators: dict from each name in `config.evals` to an evaluator, as returned by `keras_vit.evaluation.get`. An
            evaluator has `METRICS` and a method `evaluate(model, inputs, engine)`. It may have a method
            `check(model, inputs)`, which is called before the first step and raises a `ValueError` if the evaluator
            does not support the model.
        engine: an `Engine` to use instead of the engine that the config selects.
        check: called with the model and the inputs before the first step; raises a `ValueError` to reject the run, for
            example because the model cannot be exported.
        start: `time.monotonic()` at the start of the command, for the reported startup time; None for the current time.

    Returns:
        A `RunResult`.

    Raises:
        ValueError: the config is invalid, or training cannot continue.
        Preempted: the process received a stop signal. The run is saved, and the same call resumes it.
    """
    start = time.monotonic() if start is None else start
    engine = engine or choose_engine(config)
    workdir.is_chief = engine.host_index == 0
    evaluators = evaluators or {}
    task = tasks.get(config, task)
    validation.validate_config(config, engine.num_devices)
    validation.validate_evaluators(config, task, evaluators)
    if engine.host_index:
        write = log.debug  # only process 0 writes the log
    with workdir.lock():
        return _run(config, workdir, write, task, evaluators, engine, check, start)


def _run(config, workdir, write, task, evaluators, engine, check, start):
    chief = engine.host_index == 0
    # Build the data, the model and the optimizer.
    with _global_state(config):
        reports = []
        checkpoints = CheckpointManager(workdir.checkpoints, engine, write)
        if checkpoints.steps():
            task.facts_of_weights.update((read_model(workdir.path) or _OLD)["weights"])
        inputs = load_inputs(config, reports.append, task.facts_of_weights)
        for split in ("train", "test"):
            inputs.bad_examples(split).check_small_source()
        num_examples = inputs.train.num_examples
        total_steps = validation.total_steps(config, num_examples)
        validation.validate_length(config, total_steps, num_examples)
        load_weights = None if checkpoints.steps() else _weights_loader(config, inputs, reports.append)
        engine.build(config, task, inputs, total_steps, load_weights)

    # Reject unsuitable models before the first step.
    if engine.model.input_shape[1:] != inputs.image_shape:
        raise ValueError(
            "`model.input_shape` must match the size of the images in `data`. The model expects "
            f"images of shape {engine.model.input_shape[1:]}. Received: images of shape "
            f"{inputs.image_shape}"
        )
    for function in (check, *(getattr(evaluators[name], "check", None) for name in config.evals)):
        if function is not None:
            function(engine.model, inputs)
    check_test_examples(engine, inputs)

    # Log the config, the data and the devices.
    if chief and (warning := inputs.dark_warning()):
        reports.append(f"warning: {warning}")
    if config.batch_size > num_examples:
        reports.append(
            f"warning: a batch of {config.batch_size} images repeats some of the {num_examples} training images; "
            "set a smaller --config.batch_size"
        )
    if chief and config.precision == "float32" and not checkpoints.steps():
        speedup = engine.bfloat16_speedup() if engine.model.count_params() > _LARGE_MODEL else 1.0
        if speedup > 1.3:
            reports.append(
                f"this CPU multiplies bfloat16 matrices about {speedup:.1f} times as fast as float32; "
                "try --config.precision=mixed_bfloat16"
            )
    for line in (*run_summary(config, task, engine=engine, inputs=inputs, total_steps=total_steps), *reports):
        write(line)

    # Resume from the newest checkpoint, if there is one.
    counters = Counters(**checkpoints.restore())
    _check_continuation(counters, total_steps, inputs, workdir)
    counters.data = inputs.fingerprint()
    workdir.claim({"inputs": inputs.describe(), "weights": task.facts_of_weights})

    # Train, then evaluate the model, with the EMA as its weights if `ema_decay` is positive.
    progress = Progress(total_steps, config.batch_size, engine.num_devices, write, start=start)
    metric_writer = MetricWriter(
        workdir, counters, step_metrics(task), progress, log_every_steps=config.log_every_steps,
        total_steps=total_steps, test_examples=inputs.test.num_examples, write=write, enabled=chief,
    )  # fmt: skip
    evaluate = make_evaluate(config, engine, inputs, evaluators, write)
    with contextlib.closing(metric_writer):
        train(
            config, engine, inputs, counters, total_steps=total_steps, evaluate=evaluate, checkpoints=checkpoints,
            metric_writer=metric_writer, progress=progress, workdir=workdir, write=write,
        )  # fmt: skip
        with raise_on_stop_signals("the final evaluation"):
            engine.swap_ema()
            metrics = evaluate()
            metric_writer.write_evaluation(total_steps, metrics)
            note_best(counters, config.best_metric, metrics)
            checkpoints.update(total_steps, dataclasses.asdict(counters))
    results, seconds = {f"test/{name}": value for name, value in metrics.items()}, counters.train_seconds
    speed = total_steps * config.batch_size / seconds if seconds else 0.0
    results |= {"train/bad_examples": counters.all_bad_examples, "train/skipped_steps": counters.skipped_steps}
    results |= {"train/seconds": seconds, "train/images_per_second": speed}
    return RunResult(engine.gather_model(), inputs, results)


def has_checkpoint(path: str | os.PathLike) -> bool:
    """Returns whether a run has a finished checkpoint.

    Args:
        path: the workdir of the run, local or remote.
    """
    return bool(finished_steps(files.as_path(path) / "checkpoints"))


def load_checkpoint(
    path: str | os.PathLike, write: Callable[[str], object] = terminal.write
) -> tuple[RunResult, ConfigDict]:
    """Loads the model of a run onto one device.

    This loads the last checkpoint of a finished run. For an unfinished run, it loads the best checkpoint, or the newest
    if no checkpoint was evaluated. Neither the data of the run nor the file of `config.weights` is needed, except
    for runs of older versions, which have no `model.json`.

    Args:
        path: the workdir of a run, finished or not, local or remote.
        write: called with a line that names the checkpoint.

    Returns:
        `(result, config)`: a `RunResult` without metrics, and the config of the run. `result.inputs` has the classes,
        shapes and preprocessing of the data, but no examples; `data.from_config` loads them.

    Raises:
        ValueError: the folder has no config or no checkpoint, or the checkpoint is damaged.
    """
    folder = files.as_path(path)
    config = read_config(folder)
    steps = finished_steps(folder / "checkpoints")
    if not steps:
        raise ValueError(
            f"The run has no checkpoint yet. Resume it with the command in its command.json. Received: workdir={folder}"
        )
    config.update(strategy="default", shard="", tpu_address="")
    engine = choose_engine(config)
    checkpoints, task = CheckpointManager(folder / "checkpoints", engine, write), tasks.get(config)
    with _global_state(config):
        if stored := read_model(folder):
            task.facts_of_weights.update(stored["weights"])
            inputs = data.InputPipeline.from_description(stored["inputs"])
        else:
            task.facts_of_weights.update(_OLD["weights"])
            inputs = load_inputs(config, log.debug, task.facts_of_weights)
        total_steps = validation.total_steps(config, inputs.train.num_examples)
        engine.build(config, task, inputs, total_steps)
    newest = files.read_json(f"{checkpoints.path(steps[-1])}/{MARKER}")
    # Load the last model of a finished run, which is the model that was evaluated and exported.
    best = newest.get("best_step") if isinstance(newest, dict) and steps[-1] < total_steps else None
    step = best if best in steps else steps[-1]
    which = f"best checkpoint by {newest['best_metric']}" if best in steps else "newest checkpoint"
    write(f"using the {which}, {checkpoints.path(step)}")
    engine.restore(f"{checkpoints.path(step)}/state")
    engine.swap_ema()
    return RunResult(engine.gather_model(), inputs, {}), config


def _check_continuation(counters, total_steps, inputs, workdir):
    """Raises a `ValueError` unless the run can continue to `total_steps` with these inputs."""
    if counters.step > total_steps:
        raise ValueError(
            f"`total_steps` must be at least {counters.step}, the number of steps that the run has completed. "
            f"Received: total_steps={total_steps}"
        )
    before, now = tuple(counters.data), inputs.fingerprint()
    # Checkpoints of older versions have only four numbers, or other checksums.
    if any(before == known[: len(before)] for known in (now, inputs.fingerprint(old=True))):
        return
    has_same_training = len(before) == len(now) and all(before[i] == now[i] for i in (0, 2, 4))
    if not (has_same_training and workdir.change):
        changed = "test set" if has_same_training else "dataset"
        advice = ", or pass --change to continue with the new test set" if has_same_training else ""
        raise ValueError(
            f"The {changed} has changed since the run began with {before[0]} training and {before[1]} test examples: "
            "its size, classes, labels, pixels, file names or file sizes differ. Restore it, or choose another workdir"
            f"{advice}. Received: {now[0]} training and {now[1]} test examples"
        )
    workdir.record_change("data", before, now)
    counters.best_metric = ""  # values on the old test set cannot be compared


def load_inputs(config, write, facts=None):
    """Loads the data. Images are decoded and normalized as the weights expect, as read from or added to `facts`.

    If the config normalizes differently with its own `mean` or `std`, or if the number of channels differs, warns and
    keeps the config's normalization. `library` in the config replaces that of the weights.
    """
    facts = {} if facts is None else facts
    fields = {"batch_size": config.batch_size, "seed": config.seed, "empty_is_negative": config.loss == "sigmoid"}
    inputs = data.from_config(config.data, **fields)
    if "preprocessing" not in facts:
        found = find_preprocessing(config.weights, **_size(config, inputs)) if config.weights else None
        facts["preprocessing"] = found and found.to_config()
    if facts["preprocessing"] is None:
        return inputs
    expected = Preprocessing.from_config(facts["preprocessing"])
    library = config.data.get("library") or facts.get("library") or expected.library
    expected = dataclasses.replace(expected, library=library)
    if expected.library != inputs.model_preprocessing().library:
        write(f"JPEG files are decoded as in {expected.library}, as the weights expect")
        inputs = dataclasses.replace(inputs, options={**inputs.options, "library": expected.library})
    own, theirs = _normalization(inputs.model_preprocessing()), _normalization(expected)
    if own.shape == theirs.shape and np.allclose(own, theirs):
        return inputs
    mean, std = (", ".join(f"{value:.6g}" for value in values) for values in (expected.mean, expected.std))
    numbers = f"mean=({mean}), std=({std})"
    if config.data.get("mean") or config.data.get("std") or len(theirs) not in (1, inputs.image_shape[-1]):
        write(f"warning: the weights expect images normalized with {numbers}, but the config normalizes differently")
        return inputs
    write(f"images are normalized with {numbers}, as the weights expect")
    return inputs.normalized_as(expected)


def _normalization(preprocessing):
    """Returns the mean and std of each channel for pixels in [0, 1]: `(C, 2)`, or `(1, 2)` if all rows are equal."""
    rows = np.array([preprocessing.mean, preprocessing.std]).T / (2**preprocessing.bit_depth - 1)
    return rows[:1] if (rows == rows[0]).all() else rows


def _size(config, inputs):
    """Returns the arguments of the model that select a published file."""
    sizes = {**config.model, "input_shape": config.model.get("input_shape") or inputs.image_shape}
    sizes["resnet_blocks"] = sizes["resnet_blocks"] if sizes.get("stem") else None
    return sizes


def _weights_loader(config, inputs, write):
    """Downloads `config.weights` and returns a function that loads them into a model, or None if the field is empty."""
    if not config.weights:
        return None
    # Download the weights before building the model.
    fetch(config.weights, **_size(config, inputs))

    def load_weights(model):
        layers = [layer for layer in model.layers if isinstance(layer, InputPreprocessing)]
        preprocessings = [layer.preprocessing for layer in layers]
        write(str(load(model, config.weights, head="new", channels=config.weights_channels or None)))
        for layer, preprocessing in zip(layers, preprocessings):
            layer.preprocessing = preprocessing  # keep the preprocessing of the training data

    return load_weights


@contextlib.contextmanager
def _global_state(config):
    """Sets Keras' dtype policy and the initializers' seed from the config, and restores both on exit."""
    policy, states = keras.config.dtype_policy(), (random.getstate(), np.random.get_state())
    try:
        keras.config.set_dtype_policy(config.precision)
        random.seed(config.seed)  # Keras' initializers draw their seeds from `random`
        np.random.seed(config.seed)
        yield
    finally:
        keras.config.set_dtype_policy(policy)
        random.setstate(states[0])
        np.random.set_state(states[1])
