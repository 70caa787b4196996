"""A page on how a model classifies: calibration, confusions, and the images that it gets most wrong."""

import numpy as np

from keras_vit.evaluation import calibration, plots
from keras_vit.evaluation.collecting import read_test_examples
from keras_vit.plots import Page, to_pictures


def write_report(model, inputs, output, title="model", data_title="", table=(), worst=32, write=print):
    """Draws how a model classifies the test examples, and writes `index.html` next to the pictures; returns its path.

    Args:
        model: a `keras.Model` with logits or probabilities `(B, classes)`.
        inputs: the `data.InputPipeline`.
        output: the folder to write to; pictures in it are replaced.
        title, data_title: the names of the model and of the data.
        table: lines of metrics.
        worst: how many of the worst-classified images are drawn.
        write: takes a line for each picture.
    """
    names = inputs.test.class_names
    probabilities, labels, indices = calibration.probabilities_and_labels(model, inputs)
    error = calibration.expected_calibration_error(probabilities, labels)
    matrix = calibration.confusion_matrix(probabilities, labels)
    # The right class has the smallest probability.
    order = np.argsort(probabilities[np.arange(len(labels)), labels], kind="stable")[:worst]
    images, _, files = read_test_examples(inputs, indices[order])
    pictures = to_pictures(images, inputs.model_preprocessing())
    page = Page(output, f"{title} on {data_title}" if data_title else title, write)
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
        plots.predictions, pictures, labels[order], probabilities[order], names, 8, files, wide=True,
    )  # fmt: skip
    accuracy = float((probabilities.argmax(1) == labels).mean())
    items = [
        f"{inputs.test.name_of(int(index))}: {names[label]}, predicted {names[row.argmax()]} {100 * row.max():.1f} %"
        for index, label, row in zip(indices[order], labels[order], probabilities[order])
    ]
    return page.save(f"{len(labels)} images, {100 * accuracy:.2f} % right", items, table)
