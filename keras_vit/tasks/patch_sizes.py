"""Trains at several patch sizes, as in FlexiViT: each step draws a size, and evaluations use all
sizes."""

from typing import Any

import numpy as np
from ml_collections import ConfigDict

from keras_vit import cost
from keras_vit.models.patch_sizes import at_patch_size
from keras_vit.tasks.task import Task

_STREAM = 0xF1E1  # separates these random numbers from others with the same seed


class PatchSizes:
    """A task whose steps draw one of `config.patch_sizes`; everything else is left to another task.

    Evaluations also compute the task's metrics at each patch size, under names such as
    "patch7/accuracy".

    Raises:
        ValueError: `patch_sizes` or `steps_per_call` has an invalid value.
    """

    # Refuse other attributes, which would be set here and not on the task.
    __slots__ = ("_seed", "_task", "_variants")

    def __init__(self, config: ConfigDict, task: Task) -> None:
        sizes = config.patch_sizes
        are_positive = all(type(size) is int and size > 0 for size in sizes)
        if not (len(sizes) == len(set(sizes)) > 1 and are_positive):
            raise ValueError(
                "`patch_sizes` must be two or more different positive integers. Received: "
                f"patch_sizes={sizes}"
            )
        if config.steps_per_call > 1:
            raise ValueError(
                "`steps_per_call` must be 1 if `patch_sizes` is set. "
                f"Received: steps_per_call={config.steps_per_call}, patch_sizes={sizes}"
            )
        self._seed = config.seed
        self._task = task
        self._variants = {size: _AtPatchSize(task, size) for size in sizes}

    def __getattr__(self, name: str) -> Any:
        if name == "_task":  # a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self._task, name)

    @property
    def variants(self):
        return tuple(variant for _, variant in sorted(self._variants.items()))

    def variant_of_step(self, step):
        variants = tuple(self._variants.values())
        return variants[np.random.default_rng((_STREAM, self._seed, step)).integers(len(variants))]

    def make_model(self, inputs):
        model = self._task.make_model(inputs)
        for size in self._variants:
            with at_patch_size(model, size):
                pass  # raises an error if the model does not support the size
        return model

    @property
    def evaluation_metrics(self):
        more = [f"patch{size}/{name}" for size in self._variants for name in self.metrics]
        return (*self._task.evaluation_metrics, *more)

    def evaluate(self, model, batch):
        values = self._task.evaluate(model, batch)
        for size, variant in self._variants.items():
            _, metrics = variant.losses_and_metrics(model, batch)
            values |= {f"patch{size}/{name}": metrics[name] for name in self.metrics}
        return values


class _AtPatchSize:
    """A task at one patch size."""

    def __init__(self, task, size):
        self.metrics = task.metrics
        self.size = size
        self._task = task

    @property
    def frozen_models(self):
        return self._task.frozen_models

    def losses_and_metrics(self, model, batch, training=False):
        with at_patch_size(model, self.size):
            return self._task.losses_and_metrics(model, batch, training=training)


def patch_size_rows(model, patch_sizes, metrics):
    """Returns a dict for each patch size: the size, tokens, multiply-accumulates per image, and
    test accuracy."""
    models = {
        size: cost.build_abstract(type(model), **{**model.arguments, "patch_size": size})
        for size in sorted(patch_sizes)
    }
    return [
        {
            "patch size": size,
            "tokens": resized.num_tokens,
            "multiply-accumulates": cost.multiply_accumulates(resized),
            "accuracy": metrics.get(f"test/patch{size}/accuracy", metrics["test/accuracy"]),
        }
        for size, resized in models.items()
    ]
