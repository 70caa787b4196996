"""Few-shot linear accuracy: a closed-form classifier on frozen representations of a few images of each class."""

import logging

import numpy as np

from keras_vit import data
from keras_vit.evaluation import ridge
from keras_vit.evaluation.representations import check_representation, representations

log = logging.getLogger("keras_vit")

SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
METRICS = tuple(f"{shots}shot" for shots in SHOTS)
SPLITS = ("train", "test")
check = check_representation


def evaluate(model, inputs, engine=None):
    """The test accuracy after 1, 5, 10 and 25 training images of each class, the mean over three draws of them.

    Representations are computed once, of the drawn training examples alone where their labels are known beforehand. A
    class with fewer images than shots gives all that it has; how many such classes there are is logged. Examples are
    drawn from all that have a label: one that cannot be decoded is left out, and no other one takes its place. Where a
    label itself cannot be read, others are drawn instead; how many such examples there are is logged.

    Args:
        model: a `keras.Model` with a Vision Transformer in it, or one that ends in a dense layer.
        inputs: the `data.InputPipeline`; its classes need not be the model's.
        engine: of a run; not used.

    Returns:
        `1shot`, `5shot`, `10shot` and `25shot`, with the ridge weight 2^10.

    Raises:
        ValueError: as `representations`.

    Reference: the paper's section 4.1; big_vision's `fewshot_lsr`, its ridge weight and seeds.
    """
    return {name: float(values[0]) for name, values in _accuracies(model, inputs, [ridge.L2]).items()}


def evaluate_datasets(model, inputs_of_datasets):
    """The same on several datasets, with one ridge weight for all of them, chosen for each number of shots by its rank.

    Args:
        model: as of `evaluate`.
        inputs_of_datasets: an `InputPipeline` by the name of each dataset.

    Returns:
        `<dataset>_<shots>shot` for each dataset, `<shots>shot`, their mean, and `<shots>shot_l2`, the ridge weight.
    """
    tables = {name: _accuracies(model, inputs, ridge.L2_GRID) for name, inputs in inputs_of_datasets.items()}
    metrics = {}
    for shots in METRICS:
        best = ridge.choose_by_rank([table[shots] for table in tables.values()])
        metrics |= {f"{name}_{shots}": float(table[shots][best]) for name, table in tables.items()}
        metrics[shots] = float(np.mean([table[shots][best] for table in tables.values()]))
        metrics[f"{shots}_l2"] = ridge.L2_GRID[best]
    return metrics


def metrics_of_datasets(names):
    """The names of what `evaluate_datasets` measures."""
    return tuple(
        metric for shots in METRICS for metric in (*(f"{name}_{shots}" for name in names), shots, f"{shots}_l2")
    )


def _accuracies(model, inputs, l2):
    """Accuracies `(len(l2),)` by the name of each metric, the mean over the seeds."""
    num_classes = len(inputs.train.class_names)
    labels, indices = inputs.train.labels, None
    if labels is not None and inputs.train.read is not None:
        draws = [ridge.draw_shots(labels, max(SHOTS), num_classes, seed) for seed in SEEDS]
        indices = np.unique(np.concatenate(draws))
    x, y, readable = representations(model, inputs, "train", indices)
    x_test, y_test, _ = representations(model, inputs)
    # Which row of x an example is, -1 for none; examples are drawn from all, whatever can be read of them.
    row_of = np.full(inputs.train.num_examples, -1)
    row_of[np.arange(len(row_of))[indices if indices is not None else slice(None)][readable]] = np.arange(len(x))
    if labels is None:
        labels = np.full(len(row_of), -1)
        labels[row_of >= 0] = y
        labels[row_of < 0] = data.labels_of(inputs.train, np.flatnonzero(row_of < 0))
    unknown = int(np.count_nonzero(labels < 0))
    if unknown:
        log.warning(
            "%d of %d training images have no label that can be read, and others of their classes are drawn",
            unknown, len(labels),
        )  # fmt: skip
    counts = np.bincount(labels[labels >= 0], minlength=num_classes)[:num_classes]
    result = {}
    for shots in SHOTS:
        short = int(np.count_nonzero(counts < shots))
        if short:
            log.warning(
                "%d of %d classes have fewer than %d training images, and give all of them", short, num_classes, shots
            )
        parts = []
        for seed in SEEDS:
            rows = row_of[ridge.draw_shots(labels, shots, num_classes, seed)]
            rows = rows[rows >= 0]
            parts.append(ridge.accuracies(x[rows], y[rows], x_test, y_test, num_classes, l2))
        result[f"{shots}shot"] = np.mean(parts, axis=0)
    return result
