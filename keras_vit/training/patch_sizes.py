"""Trains one model at several patch sizes, as in FlexiViT: each step draws a size, and evaluations use all sizes."""

import contextlib
import types

import numpy as np

from keras_vit import cost
from keras_vit.models.patch_sizes import at_patch_size as models_at_patch_size

_STREAM = 0xF1E1  # separates these random numbers from others with the same seed


def patch_size_of_step(config, step):
    """Returns the patch size of a step, drawn uniformly from `config.patch_sizes`, or None if that field is empty."""
    sizes = config.get("patch_sizes")
    return sizes[np.random.default_rng((_STREAM, config.seed, step)).integers(len(sizes))] if sizes else None


def at_patch_size(task, size):
    """Returns a task's `metrics` and `losses_and_metrics` at a patch size; None keeps the model's own size."""

    def losses_and_metrics(model, batch, training=False):
        with patch_scope(model, size):
            return task.losses_and_metrics(model, batch, training=training)

    return types.SimpleNamespace(metrics=task.metrics, losses_and_metrics=losses_and_metrics)


def make_task_metrics(task, patch_sizes=()):
    """Returns the default `compute` function of `Engine.evaluate`.

    The function also computes the task's metrics at each of `patch_sizes`, under names such as "patch7/accuracy".
    """

    def task_metrics(model, batch):
        losses, metrics = task.losses_and_metrics(model, batch, training=False)
        values = {"loss": losses, **{name: metrics[name] for name in task.metrics}}
        for size in patch_sizes:
            _, metrics = at_patch_size(task, size).losses_and_metrics(model, batch)
            values |= {f"patch{size}/{name}": metrics[name] for name in task.metrics}
        return values

    return task_metrics


def metric_names(config, task):
    """Returns the names of the metrics that `make_task_metrics` computes."""
    return ["loss", *task.metrics, *(f"patch{size}/{name}" for size in config.patch_sizes for name in task.metrics)]


def patch_size_rows(model, patch_sizes, metrics):
    """Returns a dict for each patch size: the size, tokens, multiply-accumulates per image, and test accuracy."""
    rows = []
    for size in sorted(patch_sizes):
        resized = cost.build_abstract(type(model), **{**model.arguments, "patch_size": size})
        accuracy = metrics.get(f"test/patch{size}/accuracy", metrics["test/accuracy"])
        costs = resized.num_tokens, cost.multiply_accumulates(resized)
        rows.append(dict(zip(("patch size", "tokens", "multiply-accumulates", "accuracy"), (size, *costs, accuracy))))
    return rows


def check_patch_sizes(config, model):
    """Raises a `ValueError` unless a model supports the patch sizes of a config."""
    sizes = tuple(config.get("patch_sizes", ()))
    if not sizes:
        return
    for size in sizes:
        with patch_scope(model, size):
            pass


def patch_scope(model, size):
    """Returns `keras_vit.at_patch_size(model, size)`, or a null context if `size` is None."""
    return contextlib.nullcontext() if size is None else models_at_patch_size(model, size)
