"""A page on how a model classifies: calibration, confusions, and the images that it gets most wrong."""

import html

import numpy as np

from keras_vit import data, files
from keras_vit.evaluation import calibration, plots

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; }}
img {{ max-width: 100%; }}
</style>
</head>
<body>
{body}</body>
</html>
"""


def write_report(model, inputs, output, title="model", worst=32, write=print):
    """Draws how a model classifies the test examples, and writes `index.html` beside the pictures.

    Args:
        model: a `keras.Model` whose outputs are logits or probabilities `(B, classes)`.
        inputs: the `data.InputPipeline`.
        output: the folder to write to, made if it does not exist; pictures in it are replaced.
        title: what the page calls the model.
        worst: how many of the worst-classified images are drawn.
        write: takes a line for each picture.

    Returns:
        The path of the page.

    Raises:
        ValueError: as `calibration.evaluate`.
        ImportError: matplotlib is not installed.
    """
    output, names = files.as_path(output), inputs.test.class_names
    probabilities, labels, indices = calibration.probabilities_and_labels(model, inputs)
    files.make_dirs(output)
    error = calibration.expected_calibration_error(probabilities, labels)
    accuracy = float((probabilities.argmax(1) == labels).mean())
    matrix = calibration.confusion_matrix(probabilities, labels)
    # The right class has the smallest probability.
    order = np.argsort(probabilities[np.arange(len(labels)), labels], kind="stable")[:worst]
    images = _images(inputs, indices[order])
    pictures = (
        ("calibration.png", "Calibration", f"Expected calibration error {error:.4f}: the mean distance of the bars "
         "from the diagonal.", plots.reliability, calibration.calibration_bins(probabilities, labels)),
        ("confusion.png", "Confusion", "How often each class, a row, was taken for each, a column."
         + _largest_confusions(matrix, names), plots.confusion, (matrix, names)),
        ("worst.png", "Worst images", "The images whose right class has the smallest probability, worst first.",
         plots.predictions, (images, labels[order], probabilities[order], names)),
    )  # fmt: skip
    parts = []
    for name, heading, text, function, arguments in pictures:
        with files.atomic_path(output / name) as path:
            function(path, *arguments)
        write(f"drew {output / name}")
        parts.append(
            f'<h2>{heading}</h2>\n<p>{html.escape(text)}</p>\n<a href="{name}"><img src="{name}" alt="{heading}"></a>'
        )
    listed = "\n".join(
        f"<li>{html.escape(inputs.test.name_of(int(index)))}: {html.escape(names[label])}</li>"
        for index, label in zip(indices[order], labels[order])
    )
    body = (
        f"<h1>{html.escape(title)}</h1>\n<p>{len(labels)} images, {100 * accuracy:.2f} % right</p>\n"
        + "\n".join(parts)
        + f"\n<ol>\n{listed}\n</ol>\n"
    )
    with files.atomic_write(output / "index.html") as file:
        file.write(_PAGE.format(title=html.escape(title), body=body))
    return output / "index.html"


def _largest_confusions(matrix, names, count=5):
    errors = matrix - np.diag(matrix.diagonal())
    order = [index for index in np.argsort(-errors, axis=None, kind="stable")[:count] if errors.flat[index]]
    pairs = (np.unravel_index(index, matrix.shape) for index in order)
    text = ", ".join(f"{names[row]} for {names[column]} {errors[row, column]}" for row, column in pairs)
    return f" Most often: {text}." if text else ""


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
