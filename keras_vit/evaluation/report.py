"""A page on how a model classifies: calibration, confusions, and the images that it gets most wrong."""

import numpy as np

from keras_vit import data
from keras_vit.evaluation import calibration, plots
from keras_vit.plots import Page


def write_report(model, inputs, output, title="model", worst=32, write=print):
    """Draws how a model classifies the test examples, and writes `index.html` next to the pictures; returns its path.

    Args:
        model: a `keras.Model` with logits or probabilities `(B, classes)`.
        inputs: the `data.InputPipeline`.
        output: the folder to write to; pictures in it are replaced.
        title: the title of the page.
        worst: how many of the worst-classified images are drawn.
        write: takes a line for each picture.
    """
    names = inputs.test.class_names
    probabilities, labels, indices = calibration.probabilities_and_labels(model, inputs)
    error = calibration.expected_calibration_error(probabilities, labels)
    matrix = calibration.confusion_matrix(probabilities, labels)
    # The right class has the smallest probability.
    order = np.argsort(probabilities[np.arange(len(labels)), labels], kind="stable")[:worst]
    images = _images(inputs, indices[order])
    page = Page(output, title, write)
    page.draw(
        "calibration.png", "Calibration",
        f"Expected calibration error {error:.4f}: the mean distance of the bars from the diagonal.",
        plots.reliability, *calibration.calibration_bins(probabilities, labels),
    )  # fmt: skip
    page.draw(
        "confusion.png", "Confusion",
        "How often each class, a row, was predicted as each, a column.",
        plots.confusion, matrix, names,
    )  # fmt: skip
    page.draw(
        "worst.png", "Worst images", "The images whose right class has the smallest probability, worst first.",
        plots.predictions, images, labels[order], probabilities[order], names,
    )  # fmt: skip
    accuracy = float((probabilities.argmax(1) == labels).mean())
    items = [
        f"{inputs.test.name_of(int(index))}: {names[label]}" for index, label in zip(indices[order], labels[order])
    ]
    return page.save(f"{len(labels)} images, {100 * accuracy:.2f} % right", items)


def _images(inputs, indices):
    """Images of the test split, `(N, H, W, C)`."""
    source, indices = inputs.test, [int(index) for index in indices]
    if source.read is not None:
        source, indices = data.subset(source, indices), list(range(len(indices)))
    kept, first, expected = {}, 0, set(indices)
    order = data.evaluation_order(source, inputs.batch_size)
    for batch, _, _ in data.eval_batches(source, batch_size=inputs.batch_size, **inputs.options):
        rows = enumerate(order[first : first + len(batch)])
        kept |= {int(index): np.asarray(batch[row]) for row, index in rows if index in expected}
        first += len(batch)
    return np.stack([kept[index] for index in indices])
