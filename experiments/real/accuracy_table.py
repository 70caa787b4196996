"""The CSV file of a study: an accuracy for each key, such as a method, a number and a seed."""

import csv

from keras_vit import files


def read(path, columns):
    """Returns `{key: accuracy}`; {} if the file does not exist.

    Args:
        path: the file.
        columns: `{name: type}` of the parts of a key.
    """
    if not path.exists():
        return {}
    with open(path, newline="", encoding="utf-8") as file:
        return {
            tuple(convert(row[name]) for name, convert in columns.items()): float(row["accuracy"])
            for row in csv.DictReader(file)
        }


def write(path, columns, rows):
    """Atomically writes `{key: accuracy}`; the accuracies are rounded to four decimal places."""
    with files.atomic_write(path) as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*columns, "accuracy"])
        table.writerows([*key, f"{accuracy:.4f}"] for key, accuracy in rows.items())


def span(accuracies):
    """Returns the lowest and the highest accuracy, such as "0.810 to 0.825".

    Returns one number if they are equal after rounding, and "" for an empty list or None.
    """
    ends = (f"{end(accuracies):.3f}" for end in (min, max)) if accuracies else ()
    return " to ".join(dict.fromkeys(ends))
