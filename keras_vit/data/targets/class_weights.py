"""Reads the weights of classes in the training loss."""

import math

from keras_vit.data.sources.text_files import csv_rows


def read(path: str, class_names: tuple[str, ...]) -> list[float]:
    """Returns the weights of all classes from a CSV file with a class and a weight per row.

    Raises:
        ValueError: the file cannot be read, does not have every class once, has a weight that is
            not a number of 0 or more, or has no weight above 0.
    """
    rows = [row for _, row in csv_rows(path)]
    try:
        weights = {name: float(weight) for name, weight in rows}
    except ValueError as error:
        raise ValueError(
            "A file of `class_weights` must have a class and a number in each row, and no header "
            f"({error}). Received: {path!r}"
        ) from None
    wrong = [name for name in class_names if not 0 <= weights.get(name, -1) < math.inf]
    if wrong or len(rows) != len(class_names) or not any(weights.values()):
        raise ValueError(
            "A file of `class_weights` must have a row for each class, and weights of 0 or more, "
            f"of which one is above 0. Received: {len(rows)} rows for {len(class_names)} classes, "
            f"wrong or missing weights of {wrong[:10]} in {path!r}"
        )
    return [weights[name] for name in class_names]
