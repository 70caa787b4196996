"""Plots of the metrics of a run, and of accuracy against cost."""

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.plots import figure_class


def training_curve(
    path: str | os.PathLike,
    columns: Mapping[str, np.ndarray],
    evaluations: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Plots the metrics over the training steps, one panel per metric.

    The panel of `bad_examples` is omitted if all values are 0.

    Args:
        path: image file to write; its extension selects the format.
        columns: metrics of the training steps, as returned by `training.read_metrics` for
            `metrics.csv`.
        evaluations: metrics of the evaluations, from `evaluations.csv`, or None. Each metric is
            drawn in the panel of the same name, if there is one.

    Raises:
        ImportError: matplotlib is not installed (`pip install "keras_vit[plots]"`).
    """
    names = [
        name
        for name in columns
        if name != "step" and (name != "bad_examples" or np.any(columns[name]))
    ]
    rows = math.ceil(len(names) / 2)
    figure = figure_class()(figsize=(10, 3 * rows), layout="constrained")
    steps = np.asarray(columns["step"])
    for axes, name in zip(figure.subplots(rows, 2, squeeze=False).flat, names):
        _draw_values(axes, steps, np.asarray(columns[name]))
        if evaluations is not None and name in evaluations:
            axes.plot(
                evaluations["step"], evaluations[name], "o-", color="tab:orange", label="evaluation"
            )
            axes.legend()
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    for axes in figure.axes[len(names) :]:
        axes.set_axis_off()
    figure.savefig(path, dpi=100)


def _draw_values(axes, steps, values):
    """Draws the values and, if there are many, their moving average."""
    is_noisy = len(values) >= 100
    axes.plot(steps, values, color="tab:blue", alpha=0.3 if is_noisy else 1, linewidth=0.8)
    if is_noisy:
        width = len(values) // 50
        smooth = np.convolve(values, np.full(width, 1 / width), "valid")
        axes.plot(steps[width // 2 :][: len(smooth)], smooth, color="tab:blue")


def accuracy_against_cost(
    path: str | os.PathLike, lines: Mapping[str, Sequence[Mapping[str, float]]]
) -> None:
    """Plots test accuracy against multiply-accumulates per image.

    Args:
        path: image file to write; its extension selects the format.
        lines: `{label of a line: rows}`. Each row is a point with the keys "patch size",
            "multiply-accumulates" and "accuracy".

    Raises:
        ImportError: matplotlib is not installed (`pip install "keras_vit[plots]"`).
    """
    figure = figure_class()(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for label, rows in lines.items():
        points = [(row["multiply-accumulates"], row["accuracy"]) for row in rows]
        axes.plot(*zip(*points), "o-", label=label)
        for row, point in zip(rows, points):
            axes.annotate(f"{row['patch size']}", point, (4, 4), textcoords="offset points")
    axes.set(
        xscale="log",
        xlabel="multiply-accumulates per image (labels: patch size)",
        ylabel="test accuracy",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)
