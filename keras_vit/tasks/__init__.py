"""Tasks, one per file, in `keras.ops`.

A task builds the model of a config and computes the losses and metrics of a model on a batch. Engines and evaluation
need nothing else. To add a task, write a class like those here and add it to `TASKS`.
"""

from ml_collections import ConfigDict

from keras_vit.tasks.classification import Classification
from keras_vit.tasks.masked_patches import MaskedPatchPrediction
from keras_vit.tasks.task import Task

TASKS = {"classification": Classification, "masked_patches": MaskedPatchPrediction}
"""The classes of the tasks, by the value of `config.task`."""


def get(config: ConfigDict) -> Task:
    """Returns the task of a config: `config.task` is a key of `TASKS`.

    Raises:
        ValueError: the name is not known, or the task does not support another field of the config.
    """
    if config.task not in TASKS:
        raise ValueError(f"`task` must be one of {', '.join(TASKS)}. Received: task={config.task!r}")
    return TASKS[config.task](config)


__all__ = ["TASKS", "Classification", "MaskedPatchPrediction", "Task", "get"]
