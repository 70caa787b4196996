"""What is learned: one task per file, in `keras.ops`.

A task builds the model of a config, and gives the losses and metrics of a model on a batch. Training, on any engine,
and evaluation know nothing else about it. To add a task, write a class like those here and add its row to `TASKS`.
"""

from ml_collections import ConfigDict

from keras_vit.tasks.classification import Classification
from keras_vit.tasks.masked_patches import MaskedPatchPrediction
from keras_vit.tasks.task import Task

TASKS = {"classification": Classification, "masked_patches": MaskedPatchPrediction}
"""The classes of the tasks by the name that `config.task` has."""


def get(config: ConfigDict) -> Task:
    """The task that a config names, `config.task`, a key of `TASKS`.

    Raises:
        ValueError: the name is not known, or the config asks for something that the task cannot do.
    """
    if config.task not in TASKS:
        raise ValueError(f"`task` must be one of {', '.join(TASKS)}. Received: task={config.task!r}")
    return TASKS[config.task](config)


__all__ = ["TASKS", "Classification", "MaskedPatchPrediction", "Task", "get"]
