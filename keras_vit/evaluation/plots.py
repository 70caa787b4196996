"""Plots predictions, calibration and confusion matrices."""

import os
from collections.abc import Sequence

import numpy as np

from keras_vit.plots import figure_class, image_axes, plain_text, shortened


def predictions(
    path: str | os.PathLike,
    pictures: np.ndarray,
    labels: np.ndarray,
    probabilities: np.ndarray,
    class_names: Sequence[str],
    columns: int = 8,
    names: Sequence[str] = (),
) -> None:
    """Draws images with their predicted classes, green if correct and red if wrong.

    Args:
        path: file to write.
        pictures: float `(N, H, W, 3)` in [0, 1].
        labels: true classes, integers `(N,)`.
        probabilities: float `(N, classes)`.
        class_names: names of the classes.
        columns: maximum number of images per row.
        names: file names `(N,)`, or an empty sequence.
    """
    rows = -(-len(pictures) // columns)
    columns = min(columns, len(pictures))
    height = 2.35 if any(names) else 2.15  # inches of a row
    figure, _ = image_axes(rows, columns, (1.75 * columns, height * rows))
    for axes, picture, label, row in zip(figure.axes, pictures, labels, probabilities):
        prediction = int(np.argmax(row))
        axes.imshow(picture)
        title = f"{shortened(class_names[prediction], 17)}  {100 * row[prediction]:.0f} %"
        if prediction != label:
            title += f"\nis {shortened(class_names[label], 19)}"
        axes.set_title(title, fontsize=9, color="green" if prediction == label else "red")
    for axes, name in zip(figure.axes, names):
        axes.text(
            0.5,
            -0.03,
            shortened(name, 24),
            fontsize=7,
            ha="center",
            va="top",
            transform=axes.transAxes,
        )
    figure.savefig(path, dpi=100)


def reliability(
    path: str | os.PathLike, counts: np.ndarray, confidence: np.ndarray, accuracy: np.ndarray
) -> None:
    """Draws accuracy by confidence; the points of a calibrated model lie on the diagonal.

    Args:
        path: file to write.
        counts, confidence, accuracy: number of predictions, mean confidence and accuracy of each
            bin, as returned by `calibration.calibration_bins`.
    """
    figure = figure_class()(figsize=(5.5, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    width = 1 / len(counts)
    centers = (np.arange(len(counts)) + 0.5) * width
    filled = counts > 0
    upper.bar(centers, accuracy, width, edgecolor="white", label="accuracy")
    upper.plot(
        confidence[filled],
        accuracy[filled],
        "o-",
        color="tab:orange",
        label="mean confidence of the bin",
    )
    upper.plot([0, 1], [0, 1], "k--")
    upper.set_ylabel("accuracy")
    upper.set_title("Calibration")
    upper.legend(loc="upper left")
    lower.bar(centers, counts, width, edgecolor="white", color="tab:gray")
    lower.set_ylabel("predictions")
    lower.set_xlabel("confidence: the largest probability")
    lower.set_xlim(0, 1)
    figure.savefig(path, dpi=100)


def confusion(path: str | os.PathLike, matrix: np.ndarray, class_names: Sequence[str]) -> None:
    """Draws a confusion matrix; the color of a cell shows its fraction of the row.

    Args:
        path: file to write.
        matrix: integers `(classes, classes)`, with a row per true class and a column per predicted
            class.
        class_names: names of the classes.
    """
    classes = len(matrix)
    side = float(np.clip(0.45 * classes + 2, 5, 12))
    figure = figure_class()(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true class")
    if classes <= 40:  # more names would overlap
        names = [plain_text(name) for name in class_names]
        axes.set_xticks(range(classes), names, rotation=90 if max(map(len, names)) > 2 else 0)
        axes.set_yticks(range(classes), names)
    if classes <= 20:  # more numbers would overlap
        for row, column in np.argwhere(matrix):
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(
                column, row, matrix[row, column], ha="center", va="center", color=color, fontsize=8
            )
    figure.colorbar(shown, label="share of the row", shrink=0.8)
    figure.savefig(path, dpi=100)
