"""Pictures. The only file that imports matplotlib, and only when a picture is asked for."""

import numpy as np


def predictions(path, images, labels, probabilities, class_names, columns=8):
    """Draws images with the model's answers: green where right, red where wrong.

    Args:
        path: the file to write; its ending decides the format.
        images: `(N, H, W, 3)` in [-1, 1].
        labels: integers `(N,)`, the right answers.
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
        answer = int(np.argmax(row))
        axes.imshow((np.asarray(image) + 1) / 2, vmin=0, vmax=1)
        title = f"{class_names[answer]}  {100 * row[answer]:.0f} %"
        if answer != label:
            title += f"\nis {class_names[label]}"
        axes.set_title(title, fontsize=9, color="green" if answer == label else "red")
    figure.savefig(path, dpi=100)


def _figure_class():
    """matplotlib's `Figure`, which draws without a screen and without pyplot's global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('matplotlib is not installed; pip install "keras_vit[plots]" adds it.') from error
    return Figure
