"""Runs training, from a config to a trained and evaluated model."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
from ml_collections import ConfigDict

from keras_vit import data, tasks, terminal
from keras_vit.data.pipeline import Fingerprint
from keras_vit.models.any_model import image_shape_of
from keras_vit.models.freezing import frozen_weights, merge_lora
from keras_vit.training import stored_models, trackers, validation
from keras_vit.training.bad_examples import check_test_examples
from keras_vit.training.checkpoint_manager import CheckpointManager
from keras_vit.training.counters import Counters
from keras_vit.training.engine import Engine
from keras_vit.training.engines import choose_engine
from keras_vit.training.global_state import dtype_policy_and_seed
from keras_vit.training.loading import RunResult
from keras_vit.training.loop import Loop
from keras_vit.training.metrics import MetricWriter
from keras_vit.training.progress import Progress, run_summary
from keras_vit.training.update import step_metrics
from keras_vit.training.weights import load_inputs, weights_loader
from keras_vit.training.workdir import Workdir, read_model

log = logging.getLogger(__name__)


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
    tracker: str = "",
) -> RunResult:
    """Trains and evaluates a model according to a config, or resumes an interrupted run in the
    workdir.

    Keras' global dtype policy and the global random states of Python and NumPy are restored after
    the model is built.

    Args:
        config: the config, as in `keras_vit/configs/digits.py`; `keras_vit/recipes/defaults.py`
            lists the fields.
        workdir: the run's `Workdir`.
        write: called with each log line.
        task: a `tasks.Task` to use instead of the task named by `config.task`.
        evaluators: dict from each name in `config.evals` to an evaluator, as returned by
            `keras_vit.evaluation.get`. An evaluator has `METRICS` and a method
            `evaluate(model, inputs, engine)`. It may have a method `check(model, inputs)`, which is
            called before the first step and raises a `ValueError` if the evaluator does not support
            the model.
        engine: an `Engine` to use instead of the engine that the config selects.
        check: called with the model and the inputs before the first step; raises a `ValueError` to
            reject the run, for example because the model cannot be exported.
        start: `time.monotonic()` at the start of the command, for the reported startup time; None
            for the current time.
        tracker: "mlflow" or "wandb", to send metrics there; `tracker.json` in the workdir has the
            id of the tracker's run, which a resumed run continues. "" is none.

    Returns:
        A `RunResult`.

    Raises:
        ValueError: the config is invalid, or training cannot continue.
        Preempted: the process received a stop signal. The run is saved, and the same call resumes
            it.
    """
    start = time.monotonic() if start is None else start
    engine = engine or choose_engine(config)
    workdir.is_chief = engine.host_index == 0
    evaluators = evaluators or {}
    task = tasks.get(config, task)
    trackers.check(tracker)
    validation.validate_config(config, engine.num_devices)
    validation.validate_evaluators(config, task, evaluators)
    if engine.host_index:
        write = log.debug  # only process 0 writes the log
    with workdir.lock():
        # Build the data, the model and the optimizer, and reject unsuitable ones before the first
        # step.
        checkpoints = CheckpointManager(workdir.checkpoints, engine, write)
        resumes = bool(checkpoints.steps())
        inputs, total_steps, reports = _build(config, task, engine, workdir, resumes)
        checks = [check, *(getattr(evaluators[name], "check", None) for name in config.evals)]
        _check_model(engine, inputs, checks)

        # Log the config, the data and the devices.
        for line in (*run_summary(config, task, engine, inputs, total_steps), *reports):
            write(line)

        # Resume from the newest checkpoint, if there is one.
        counters = Counters(**checkpoints.restore())
        _check_continuation(counters, total_steps, inputs, workdir)
        counters.data = inputs.fingerprint()
        workdir.claim({"inputs": inputs.describe(), "weights": task.facts_of_weights})

        # Train and evaluate.
        progress = Progress(total_steps, config.batch_size, engine.num_devices, write, start=start)
        metric_writer = MetricWriter(
            workdir,
            counters.step,
            step_metrics(task),
            progress,
            log_every_steps=config.log_every_steps,
            test_examples=inputs.test.num_examples,
            tracker=tracker,
        )
        loop = Loop(
            config,
            engine,
            inputs,
            evaluators,
            checkpoints,
            counters,
            metric_writer,
            progress,
            total_steps,
            profile_folder=workdir.tensorboard,
            write=write,
        )
        with contextlib.closing(metric_writer):
            loop.train()
            metrics = loop.evaluate_at_end()
        return RunResult(merge_lora(engine.gather_model()), inputs, metrics)


def _build(config, task, engine, workdir, resumes):
    """Builds the data, the model and the optimizer; returns the inputs, the number of steps and
    lines for the log."""
    lines = []
    facts = task.facts_of_weights
    source = "" if resumes else config.weights
    with (
        dtype_policy_and_seed(config),
        stored_models.as_initial_weights(source, facts, lines.append) as stored,
    ):
        if resumes:
            facts.update(read_model(workdir.path)["weights"])
        task.load_models(stored_models.load_any_model, lines.append)
        inputs = task.name_classes(load_inputs(config, lines.append, task), lines.append)
        total_steps = validation.total_steps(config, inputs.train.num_examples)
        validation.validate_length(config, total_steps, inputs.train.num_examples)
        is_loaded = resumes or task.loads_weights
        load_weights = None if is_loaded else weights_loader(config, inputs, lines.append, stored)
        engine.build(config, task, inputs, total_steps, load_weights)
    # Weights that are trained from a later step on are not frozen in Keras.
    is_frozen = frozen_weights(engine.model) or config.unfreeze_at_step
    if is_frozen and not config.weights:
        lines.append(
            "warning: the frozen weights are random, because the config has no initial weights; "
            "set --config.weights, or train all (--config.freeze=, --config.lora_rank=0 or "
            "--config.model.frozen=False)"
        )
    if config.batch_size > inputs.train.num_examples:
        lines.append(
            f"warning: a batch of {config.batch_size} images repeats some of the "
            f"{inputs.train.num_examples} training images; set a smaller --config.batch_size"
        )
    return inputs, total_steps, lines


def _check_model(engine, inputs, checks):
    """Raises a `ValueError` unless the run can train, evaluate and export the model."""
    expected = image_shape_of(engine.model)
    if expected != inputs.image_shape:
        raise ValueError(
            "`model.input_shape` must match the size of the images in `data`. The model expects "
            f"images of shape {expected}. Received: images of shape {inputs.image_shape}"
        )
    for check in filter(None, checks):
        check(engine.model, inputs)
    check_test_examples(engine, inputs)


def _check_continuation(counters, total_steps, inputs, workdir):
    """Raises a `ValueError` unless the run can continue to `total_steps` with these inputs; records
    a changed test set."""
    if counters.step > total_steps:
        raise ValueError(
            f"`total_steps` must be at least {counters.step}, the number of steps that the run has "
            f"completed. Received: total_steps={total_steps}"
        )
    now = inputs.fingerprint()
    if tuple(counters.data) in ((), now):
        return
    before = Fingerprint(*counters.data)
    has_same_training = now._replace(num_test=before.num_test, data=before.data) == before
    if not (has_same_training and workdir.change):
        advice = ", or pass --change to continue with the new test set" if has_same_training else ""
        raise ValueError(
            f"The {'test set' if advice else 'dataset'} has changed since the run began with "
            f"{before.num_train} training and {before.num_test} test examples: its size, classes, "
            "labels, pixels, file names or file sizes differ. Restore it, or choose another "
            f"workdir{advice}. Received: {now.num_train} training and {now.num_test} test examples"
        )
    workdir.record_change("data", before, now)
    # Values on the old test set cannot be compared.
    counters.best_step = -1
    counters.best_metric = ""
