"""Plots of the metrics of a run."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.plots import figure_class


def training_curve(
    path: str | os.PathLike, columns: Mapping[str, np.ndarray], evaluations: Mapping[str, np.ndarray] | None = None
) -> None:
    """Plots every metric over the training steps, one panel per metric; omits `bad_examples` if it is always 0.

    Args:
        path: image file to write; its extension selects the format.
        columns: metrics of the training steps, as returned by `training.read_metrics` for `metrics.csv`.
        evaluations: metrics of the evaluations, from `evaluations.csv`, drawn as points in the panels of the same name.

    Raises:
        ImportError: matplotlib is not installed (`pip install "keras_vit[plots]"`).
    """
    names = [name for name in columns if name != "step" and (name != "bad_examples" or np.any(columns[name]))]
    rows = -(-len(names) // 2)
    figure = figure_class()(figsize=(10, 3 * rows), layout="constrained")
    steps = np.asarray(columns["step"])
    for axes, name in zip(figure.subplots(rows, 2, squeeze=False).flat, names):
        # Draw the values and, if there are many, their moving average.
        values = np.asarray(columns[name])
        noisy = len(values) >= 100
        axes.plot(steps, values, color="tab:blue", alpha=0.3 if noisy else 1, linewidth=0.8)
        if noisy:
            width = len(values) // 50
            smooth = np.convolve(values, np.full(width, 1 / width), "valid")
            axes.plot(steps[width // 2 :][: len(smooth)], smooth, color="tab:blue")
        if evaluations is not None and name in evaluations:
            axes.plot(evaluations["step"], evaluations[name], "o-", color="tab:orange", label="evaluation")
            axes.legend()
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    for axes in figure.axes[len(names) :]:
        axes.set_axis_off()
    figure.savefig(path, dpi=100)


def accuracy_against_cost(path: str | os.PathLike, lines: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Plots accuracy against multiply-accumulates; `lines` maps labels to rows of `patch_sizes.patch_size_rows`."""
    figure = figure_class()(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for label, rows in lines.items():
        x, y = ([row[name] for row in rows] for name in ("multiply-accumulates", "accuracy"))
        axes.plot(x, y, "o-", label=label)
        for row in rows:
            place = row["multiply-accumulates"], row["accuracy"]
            axes.annotate(f"{row['patch size']}", place, (4, 4), textcoords="offset points")
    axes.set(xscale="log", xlabel="multiply-accumulates per image (numbers: patch size)", ylabel="test accuracy")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)
