"""Reads the weights of classes in the training loss."""

import csv
import math

from keras_vit.data.sources.listing import text_of


def read(path: str, class_names: tuple[str, ...]) -> list[float]:
    """Returns the weights of all classes from a CSV file with a class and a weight per row.

    Raises:
        ValueError: the file cannot be read, does not have every class once, or has a weight that
            is not a number of 0 or more.
    """
    weights: dict[str, float] = {}
    reader = csv.reader(text_of(path).splitlines())
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        name, weight = (row[0].strip(), _number(row[1])) if len(row) == 2 else ("", -1.0)
        if name not in class_names or name in weights or not 0 <= weight < math.inf:
            raise ValueError(
                "A file of `class_weights` must have rows with a class and a weight of 0 or more, "
                f"one for each class, and no header. Received: {row} in line {reader.line_num} of "
                f"{path!r}"
            )
        weights[name] = weight
    if missing := [name for name in class_names if name not in weights]:
        raise ValueError(
            f"A file of `class_weights` must have every class. Received: no weight of "
            f"{missing[:10]} in {path!r}"
        )
    return [weights[name] for name in class_names]


def _number(text):
    try:
        return float(text)
    except ValueError:
        return math.nan
