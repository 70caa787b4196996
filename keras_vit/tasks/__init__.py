"""Training tasks, written in `keras.ops`.

A task builds the model of a config and computes losses and metrics for a batch. Engines and
evaluation depend only on this interface. To add a task, subclass `Task` and add the class to
`TASKS`.
"""

from typing import Any

from ml_collections import ConfigDict

from keras_vit.layers.validation import check_choice
from keras_vit.tasks.classification import Classification
from keras_vit.tasks.dense import Depth, Segmentation
from keras_vit.tasks.distillation import Distillation
from keras_vit.tasks.image_text import ImageText
from keras_vit.tasks.masked_patches import MaskedPatchPrediction
from keras_vit.tasks.patch_sizes import PatchSizes
from keras_vit.tasks.task import Task

TASKS: dict[str, Any] = {
    "classification": Classification,
    "masked_patches": MaskedPatchPrediction,
    "segmentation": Segmentation,
    "depth": Depth,
    "distillation": Distillation,
    "image_text": ImageText,
}
"""Maps the value of `config.task` to a task class."""


def get(config: ConfigDict, task: Task | None = None) -> Task:
    """Returns the task of a config.

    Args:
        config: the config of a run.
        task: the `Task` to use instead of the task named by `config.task`, a key of `TASKS`.

    Raises:
        ValueError: the name is unknown, or the task does not support the value of another field.
    """
    chosen: Any = task
    if task is None:
        check_choice("task", config.task, TASKS)
        chosen = TASKS[config.task](config)
    if config.get("patch_sizes") and not isinstance(chosen, PatchSizes):
        chosen = PatchSizes(config, chosen)
    return chosen


__all__ = [
    "TASKS",
    "Classification",
    "Depth",
    "Distillation",
    "ImageText",
    "MaskedPatchPrediction",
    "Segmentation",
    "Task",
    "get",
]
