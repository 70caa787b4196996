"""Pictures. The only file that imports matplotlib, and only when a picture is asked for."""

import numpy as np


def predictions(path, images, labels, probabilities, class_names, columns=8):
    """Draws images with the model's predictions: green if right, red if wrong.

    Args:
        path: the file to write; its ending decides the format.
        images: `(N, H, W, 3)` in [-1, 1].
        labels: integers `(N,)`, the right classes.
        probabilities: `(N, classes)`.
        class_names: the name of each class.
        columns: images in a row.

    Raises:
        ImportError: matplotlib is not installed (`pip install "keras_vit[plots]"`).
    """
    figure_class = _figure_class()
    rows = -(-len(images) // columns)
    figure = figure_class(figsize=(1.25 * columns, 1.55 * rows), layout="constrained")
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.set_axis_off()
    for axes, image, label, row in zip(figure.axes, images, labels, probabilities):
        prediction = int(np.argmax(row))
        axes.imshow((np.asarray(image) + 1) / 2, vmin=0, vmax=1)
        title = f"{class_names[prediction]}  {100 * row[prediction]:.0f} %"
        if prediction != label:
            title += f"\nis {class_names[label]}"
        axes.set_title(title, fontsize=9, color="green" if prediction == label else "red")
    figure.savefig(path, dpi=100)


def training_curve(path, columns, evaluations=None):
    """Draws how training went: every metric over the steps, each in a plot of its own.

    Args:
        path: the file to write; its ending decides the format.
        columns: numbers `(rows,)` by name, of which `step` is one and every other becomes a plot; what
            `training.read_metrics` gives.
        evaluations: the same for evaluations, `step` too; points in the plots of the same names.

    Raises:
        ImportError: matplotlib is not installed (`pip install "keras_vit[plots]"`).
    """
    names = [name for name in columns if name != "step"]
    rows = -(-len(names) // 2)
    figure = _figure_class()(figsize=(10, 3 * rows), layout="constrained")
    steps = np.asarray(columns["step"])
    for axes, name in zip(figure.subplots(rows, 2, squeeze=False).flat, names):
        values = np.asarray(columns[name])
        noisy = len(values) >= 100
        axes.plot(steps, values, color="tab:blue", alpha=0.3 if noisy else 1, linewidth=0.8)
        if noisy:
            width = len(values) // 50
            smooth = _running_mean(values, width)
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


def _running_mean(values, width):
    """The mean of each `width` neighbors: `(N,)` to `(N - width + 1,)`."""
    return np.lib.stride_tricks.sliding_window_view(values, width).mean(-1)


def _figure_class():
    """matplotlib's `Figure`, which draws without a screen and without pyplot's global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('matplotlib is not installed; pip install "keras_vit[plots]" adds it.') from error
    return Figure
