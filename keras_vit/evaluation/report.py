"""Writes an HTML report on a classifier: calibration, confusion matrix and worst mistakes."""

import numpy as np

from keras_vit.evaluation import calibration, plots
from keras_vit.evaluation.samples import read_test_examples
from keras_vit.plots import Page, to_pictures


def write_report(model, inputs, output, title="model", table=()):
    """Writes a report on the test split to the folder `output`; returns the path of its
    `index.html`."""
    calibration.check_calibration(model, inputs)
    names = inputs.test.class_names
    predictions = calibration.predict(model, inputs)
    labels = predictions.labels
    probabilities = np.exp(predictions.log_probabilities)
    predicted = probabilities.argmax(1)
    error = calibration.expected_calibration_error(probabilities, labels)
    matrix = calibration.confusion_matrix(labels, predicted, len(names))
    # Sort the mistakes by the probability of the true class.
    order = np.argsort(probabilities[np.arange(len(labels)), labels], kind="stable")
    order = order[predicted[order] != labels[order]][:32]
    page = Page(output, title)
    page.draw(
        "calibration.png",
        "Calibration",
        f"Expected calibration error {error:.4f}: the mean distance of the bars from the diagonal, "
        "weighted by their numbers of images.",
        plots.reliability,
        *calibration.calibration_bins(probabilities, labels),
    )
    page.draw(
        "confusion.png",
        "Confusion matrix",
        "Number of predictions by true class (rows) and predicted class (columns).",
        plots.confusion,
        matrix,
        names,
    )
    if len(order):
        _draw_worst(page, inputs, predictions.indices[order], labels[order], probabilities[order])
    items = [
        f"{inputs.test.name_of(int(predictions.indices[i]))}: {names[labels[i]]}, predicted "
        f"{names[predicted[i]]} {100 * probabilities[i].max():.1f} %"
        for i in order
    ]
    accuracy = 100 * (predicted == labels).mean()
    return page.save(f"{len(labels)} images, accuracy {accuracy:.2f} %", items, table)


def _draw_worst(page, inputs, indices, labels, probabilities):
    """Draws the mistakes at these indices of the test split, with their labels and predictions."""
    images, _, files = read_test_examples(inputs, indices)
    page.draw(
        "worst.png",
        "Worst mistakes",
        "The wrong predictions whose true class has the lowest probability, worst first.",
        plots.predictions,
        to_pictures(images, inputs.model_preprocessing()),
        labels,
        probabilities,
        inputs.test.class_names,
        8,
        files,
        wide=True,
        columns=min(8, len(indices)),
    )
