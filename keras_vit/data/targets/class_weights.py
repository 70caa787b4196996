"""Reads the weights of classes in the training loss."""

import math

from keras_vit.data.sources.text_files import csv_rows


def read(path: str, class_names: tuple[str, ...]) -> list[float]:
    """Returns the weights of all classes from a CSV file with a class and a weight per row.

    Raises:
        ValueError: the file cannot be read, does not have every class once, or has a weight that
            is not a number of 0 or more.
    """
    weights: dict[str, float] = {}
    for line, row in csv_rows(path):
        name = row[0]
        weight = _number(row[1]) if len(row) == 2 else math.nan
        if name not in class_names or name in weights or not 0 <= weight < math.inf:
            raise ValueError(
                "A file of `class_weights` must have rows with a class and a weight of 0 or more, "
                f"one for each class, and no header. Received: {row} in line {line} of {path!r}"
            )
        weights[name] = weight
    if missing := [name for name in class_names if name not in weights]:
        raise ValueError(
            "A file of `class_weights` must have every class. Received: no weight for "
            f"{missing[:10]} in {path!r}"
        )
    if not any(weights.values()):
        raise ValueError(
            f"A file of `class_weights` must have a weight above 0. Received: only 0 in {path!r}"
        )
    return [weights[name] for name in class_names]


def _number(text):
    try:
        return float(text)
    except ValueError:
        return math.nan
