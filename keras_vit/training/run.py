"""A whole training run, from a config to a trained and evaluated model."""

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
from keras_vit.checkpoints import find_preprocessing, load
from keras_vit.layers import InputPreprocessing
from keras_vit.training import validation
from keras_vit.training.checkpoint_manager import MARKER, CheckpointManager, finished_steps
from keras_vit.training.engine import Engine, step_metrics
from keras_vit.training.engines import choose_engine
from keras_vit.training.loop import Counters, make_evaluate, note_best, train
from keras_vit.training.metrics import MetricWriter
from keras_vit.training.progress import Progress, run_summary
from keras_vit.training.workdir import Workdir, read_config

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a run made.

    Attributes:
        model: the trained `keras.Model`, with the averages of its weights if there are any.
        inputs: the `data.InputPipeline` that it was trained and evaluated on.
        metrics: floats by name: `test/loss` and `test/` with each metric of the task and of the evaluators,
            `test/examples` and `test/bad_examples` (how many were scored, and could not be read),
            `train/bad_examples`, `train/skipped_steps`, `train/seconds` and `train/images_per_second`.
    """

    model: keras.Model
    inputs: data.InputPipeline
    metrics: dict


def run(
    config: ConfigDict,
    workdir: Workdir,
    write: Callable[[str], object] = terminal.write,
    *,
    task: tasks.Task | None = None,
    evaluators: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    check: Callable[[keras.Model, data.InputPipeline], object] | None = None,
    start: float | None = None,
) -> RunResult:
    """Trains a model as a config says and evaluates it; goes on where an interrupted run of the workdir stopped.

    Keras' global dtype policy and the global random states are left as they were.

    Args:
        config: a recipe, as in `experiments/configs/digits.py`; `keras_vit/recipes/defaults.py` has its fields.
        workdir: the run's `Workdir`.
        write: takes the lines that say how it is going.
        task: a `tasks.Task` instead of the one that `config.task` names.
        evaluators: by the names in `config.evals`, what has `METRICS` and `evaluate(model, inputs, engine)`, as
            `keras_vit.evaluation.get` gives them; their metrics stand beside the task's own. One with a method
            `check(model, inputs)` is asked before the first step whether it can evaluate the model.
        engine: an `Engine` instead of the one that the config asks for.
        check: called with the model and the inputs before the first step; raises a `ValueError` to refuse the run, for
            example because its model cannot be exported.
        start: when the command was given, by `time.monotonic`, for the line that says how long it took to begin; None
            for now.

    Returns:
        A `RunResult`.

    Raises:
        ValueError: the config cannot be satisfied, or training cannot go on.
        Preempted: SIGTERM came; the run is saved, and the same call goes on.
    """
    start = time.monotonic() if start is None else start
    engine = engine or choose_engine(config)
    workdir.is_chief = engine.host_index == 0
    evaluators = evaluators or {}
    task = task or tasks.get(config)
    validation.validate_config(config, engine.num_devices)
    validation.validate_evaluators(config, task, evaluators)
    if engine.host_index:
        write = log.debug  # process 0 writes for all
    with workdir.lock():
        return _run(config, workdir, write, task, evaluators, engine, check, start)


def _run(config, workdir, write, task, evaluators, engine, check, start):
    chief = engine.host_index == 0
    # Data, model and optimizer.
    with _global_state(config):
        inputs = data.from_config(config.data, batch_size=config.batch_size, seed=config.seed)
        reports = []
        inputs = _normalized_as_weights(inputs, config, reports.append)
        num_examples = inputs.train.num_examples
        total_steps = validation.total_steps(config, num_examples)
        validation.validate_length(config, total_steps, num_examples)
        checkpoints = CheckpointManager(workdir.checkpoints, engine, write)
        load_weights = None if checkpoints.steps() else _weights_loader(config, reports.append)
        engine.build(config, task, inputs, total_steps, load_weights)

    # Refuse before the first step what would fail after the last.
    if engine.model.input_shape[1:] != inputs.image_shape:
        raise ValueError(
            f"The model takes images of {engine.model.input_shape[1:]}; `model.input_shape` and `data.image_size` must "
            f"agree. Received: images of {inputs.image_shape}"
        )
    for function in (check, *(getattr(evaluators[name], "check", None) for name in config.evals)):
        if function is not None:
            function(engine.model, inputs)

    # Say what is about to run.
    if config.batch_size > num_examples:
        reports.append(
            f"warning: a batch of {config.batch_size} images repeats some of the {num_examples} training images; "
            "--config.batch_size sets a smaller one"
        )
    for line in (*run_summary(config, engine=engine, inputs=inputs, total_steps=total_steps), *reports):
        write(line)

    # Resume.
    counters = Counters(**checkpoints.restore())
    _check_continuation(counters, total_steps, inputs)
    counters.data = inputs.fingerprint()
    workdir.claim()

    # Train, and evaluate the averages of the weights, which stay in the model.
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
        engine.swap_ema()
        metrics = evaluate()
        metric_writer.write_evaluation(total_steps, metrics)
        note_best(counters, config.best_metric, metrics)
        checkpoints.update(total_steps, dataclasses.asdict(counters))
    seconds = counters.train_seconds
    results = {
        **{f"test/{name}": value for name, value in metrics.items()},
        "train/bad_examples": counters.all_bad_examples,
        "train/skipped_steps": counters.skipped_steps,
        "train/seconds": seconds,
        "train/images_per_second": total_steps * config.batch_size / seconds if seconds else 0.0,
    }
    return RunResult(engine.gather_model(), inputs, results)


def has_checkpoint(path: str | os.PathLike) -> bool:
    """Whether the workdir of a run, local or remote, has a finished checkpoint."""
    return bool(finished_steps(files.as_path(path) / "checkpoints"))


def load_checkpoint(
    path: str | os.PathLike, write: Callable[[str], object] = terminal.write
) -> tuple[RunResult, ConfigDict]:
    """Loads the model of a run onto one device: the last one if training ended, else the best, or the newest.

    Args:
        path: the workdir of a run, finished or not, local or remote.
        write: takes a line that names the checkpoint.

    Returns:
        `(result, config)`: a `RunResult` without metrics, and the config of the run.

    Raises:
        ValueError: the folder has no config or no checkpoint, the checkpoint is damaged, or the data are gone.
    """
    folder = files.as_path(path)
    config = read_config(folder)
    steps = finished_steps(folder / "checkpoints")
    if not steps:
        raise ValueError(f"The run has no checkpoint yet. Received: workdir={folder}")
    config.update(strategy="default", shard="")
    engine = choose_engine(config)
    checkpoints = CheckpointManager(folder / "checkpoints", engine, write)
    with _global_state(config):
        inputs = data.from_config(config.data, batch_size=config.batch_size, seed=config.seed)
        inputs = _normalized_as_weights(inputs, config, log.debug)
        total_steps = validation.total_steps(config, inputs.train.num_examples)
        engine.build(config, tasks.get(config), inputs, total_steps)
    newest = files.read_json(f"{checkpoints.newest_path()}/{MARKER}")
    # A run that trained to its end reports, and exports, its last model.
    best = newest.get("best_step") if isinstance(newest, dict) and steps[-1] < total_steps else None
    step = best if best in steps else steps[-1]
    which = f"best checkpoint by {newest['best_metric']}" if best in steps else "newest checkpoint"
    write(f"using the {which}, {checkpoints.path(step)}")
    engine.restore(f"{checkpoints.path(step)}/state")
    engine.swap_ema()
    return RunResult(engine.gather_model(), inputs, {}), config


def _check_continuation(counters, total_steps, inputs):
    """Raises a `ValueError` unless a run can go on from its counters to a number of steps with some data."""
    if counters.step > total_steps:
        raise ValueError(
            f"The run has done {counters.step} steps, more than there are to do now; `total_steps` must be at least "
            f"that many. Received: total_steps={total_steps}"
        )
    if counters.data and tuple(counters.data) != inputs.fingerprint():
        train, test, *_ = counters.data
        raise ValueError(
            f"The data are not those of the run so far, which had {train} training and {test} test examples, or have "
            "other classes, labels, or names or sizes of files. Restore them, or choose another workdir. "
            f"Received: {inputs.train.num_examples} training and {inputs.test.num_examples} test examples"
        )


def _normalized_as_weights(inputs, config, write):
    """The input with the mean and std of the weights that training starts from, unless `config.data` has its own."""
    expected = find_preprocessing(config.weights) if config.weights else None
    if expected is None:
        return inputs
    own, theirs = _normalization(inputs.model_preprocessing()), _normalization(expected)
    if own.shape == theirs.shape and np.allclose(own, theirs):
        return inputs
    rounded = {name: tuple(round(value, 3) for value in getattr(expected, name)) for name in ("mean", "std")}
    numbers = ", ".join(f"{name}={values}" for name, values in rounded.items())
    if config.data.mean or config.data.std or len(theirs) not in (1, inputs.image_shape[-1]):
        write(f"warning: images are normalized otherwise than those of the weights, which had {numbers}")
        return inputs
    write(f"images are normalized as those of the weights: {numbers}")
    return inputs.normalized_as(expected)


def _normalization(preprocessing):
    """`(mean, std)` of each channel as shares of white; one row if all channels have the same."""
    rows = np.array([preprocessing.mean, preprocessing.std]).T / (2**preprocessing.bit_depth - 1)
    return rows[:1] if (rows == rows[0]).all() else rows


def _weights_loader(config, write):
    """A function that gives a model the weights that training starts from; None for its initial ones."""
    if not config.weights:
        return None

    def load_weights(model):
        layers = [layer for layer in model.layers if isinstance(layer, InputPreprocessing)]
        preprocessings = [layer.preprocessing for layer in layers]
        write(str(load(model, config.weights, head="new", channels=config.weights_channels or None)))
        for layer, preprocessing in zip(layers, preprocessings):
            layer.preprocessing = preprocessing  # what it is trained on, not what the published weights were

    return load_weights


@contextlib.contextmanager
def _global_state(config):
    """While it is open, Keras has the config's dtype policy, and initializers draw from the config's seed."""
    policy, states = keras.config.dtype_policy(), (random.getstate(), np.random.get_state())
    try:
        keras.config.set_dtype_policy(config.precision)
        random.seed(config.seed)  # where Keras' initializers take their seeds from
        np.random.seed(config.seed)
        yield
    finally:
        keras.config.set_dtype_policy(policy)
        random.setstate(states[0])
        np.random.set_state(states[1])
