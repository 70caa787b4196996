"""Loads the model of a training run from its checkpoints."""

import dataclasses
import os
from collections.abc import Callable

import keras
from ml_collections import ConfigDict

from keras_vit import data, files, tasks, terminal
from keras_vit.models.freezing import merge_lora
from keras_vit.training import validation
from keras_vit.training.checkpoint_manager import MARKER, CheckpointManager, finished_steps
from keras_vit.training.engines import choose_engine
from keras_vit.training.global_state import dtype_policy_and_seed
from keras_vit.training.loop import exports_best
from keras_vit.training.workdir import read_config, read_model


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of a training run.

    Attributes:
        model: the trained `keras.Model`; its weights are the EMA if `config.ema_decay` is positive.
        inputs: the `data.InputPipeline` used for training and evaluation.
        metrics: dict of numbers. `test/NAME` is a metric of `task.evaluation_metrics`, such as
            "loss", or of an evaluator; NaN if the evaluator failed. `test/examples` is the number
            of scored images, `test/bad_examples` that of unreadable images. `train/model_step` is
            the step of the evaluated model. Also `train/bad_examples`, `train/skipped_steps`,
            `train/seconds` and `train/images_per_second`.
    """

    model: keras.Model
    inputs: data.InputPipeline
    metrics: dict


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

    This loads the checkpoint that a finished run has evaluated and exported. For an unfinished run,
    it loads the best checkpoint, or the newest if no checkpoint was evaluated. Neither the data of
    the run nor the file of `config.weights` is needed.

    Args:
        path: the workdir of a run, finished or not, local or remote.
        write: called with a line that names the checkpoint.

    Returns:
        `(result, config)`: a `RunResult` without metrics, and the config of the run.
        `result.inputs` has the classes, shapes and preprocessing of the data, but no examples;
        `data.from_config` loads them.

    Raises:
        ValueError: the folder has no config or no checkpoint, or the checkpoint is damaged.
    """
    folder = files.as_path(path)
    config = read_config(folder)
    steps = finished_steps(folder / "checkpoints")
    if not steps:
        raise ValueError(
            "The run has no checkpoint yet. Resume it with the command in its command.json. "
            f"Received: workdir={folder}"
        )
    on_one_device = config.copy_and_resolve_references()
    on_one_device.update(strategy="default", shard="", tpu_address="")
    engine = choose_engine(on_one_device)
    checkpoints = CheckpointManager(folder / "checkpoints", engine, write)
    task = tasks.get(on_one_device)
    with dtype_policy_and_seed(config):
        stored = read_model(folder)
        task.facts_of_weights.update(stored["weights"])
        inputs = data.InputPipeline.from_description(stored["inputs"])
        total_steps = validation.total_steps(config, inputs.train.num_examples)
        engine.build(on_one_device, task, inputs, total_steps)
    # A finished run has evaluated and exported its last model, unless it exports the best one.
    is_finished = steps[-1] >= total_steps or files.exists(folder / "results.json")
    step, which = _chosen_step(checkpoints, steps, not is_finished or exports_best(config))
    write(f"using the {which}, {checkpoints.path(step)}")
    engine.restore(f"{checkpoints.path(step)}/state")
    engine.swap_ema()
    return RunResult(merge_lora(engine.gather_model()), inputs, {}), config


def _chosen_step(checkpoints, steps, uses_best):
    """Returns the step of the best checkpoint if `uses_best` and one was evaluated, otherwise the
    last of `steps`, and a description of the checkpoint."""
    newest = files.read_json(f"{checkpoints.path(steps[-1])}/{MARKER}")
    best = newest.get("best_step") if isinstance(newest, dict) and uses_best else None
    if best in steps:
        return best, f"best checkpoint by {newest['best_metric']}"
    return steps[-1], "newest checkpoint"
