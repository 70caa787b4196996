"""What a sweep does and the table that it makes, whatever a run is."""

import csv
import io
import json
import statistics

import tensorflow as tf


def make_rows(train, *, rates, seeds, tune_seed, held_out):
    """Makes all runs: each rate on the held-out part, then the best one with each seed on everything.

    Args:
        train: `train(name, changes)` makes a run, with these changes of the config, and returns its results.
        rates: the learning rates to compare.
        seeds: of the final runs.
        tune_seed: of the runs that compare.
        held_out: the changes of the config that make it train and test on parts of train.

    Returns:
        A list of rows, dicts of `run` ("tune" or "final"), `rate`, `seed`, `accuracy`, `loss` and `name`.
    """

    def row(run, name, changes, rate, seed):
        results = train(name, changes)
        accuracy, loss = results["test/accuracy"], results["test/loss"]
        return {"run": run, "rate": rate, "seed": seed, "accuracy": accuracy, "loss": loss, "name": name}

    tuned = [
        row("tune", f"rate={rate:g}", {"schedule.base": rate, "seed": tune_seed, **held_out}, rate, tune_seed)
        for rate in rates
    ]
    best = choose(tuned)
    return tuned + [
        row("final", f"final-rate={best:g}-seed={seed}", {"schedule.base": best, "seed": seed}, best, seed)
        for seed in seeds
    ]


def choose(rows):
    """The rate of the row with the highest accuracy; of the lowest loss where several have it."""
    return max(rows, key=lambda row: (row["accuracy"], -row["loss"]))["rate"]


def summary(rows):
    """The lines to print: a row each, and the mean and deviation of the final runs."""
    lines = ["run    rate      seed  accuracy  loss"]
    for row in rows:
        lines.append(
            f"{row['run']:5}  {row['rate']:<8g}  {row['seed']:<4}  {100 * row['accuracy']:6.2f} %  {row['loss']:.4f}"
        )
    final = [100 * row["accuracy"] for row in rows if row["run"] == "final"]
    if len(final) > 1:
        lines.append(
            f"final: {statistics.mean(final):.2f} +- {statistics.stdev(final):.2f} % over {len(final)} seeds, "
            "the deviation of one run"
        )
    return lines


def write_table(folder, rows):
    """Writes the rows to `table.json` and `table.csv`, each at once. Any `tf.io.gfile` folder."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    for name, content in (("table.csv", text.getvalue()), ("table.json", json.dumps(rows, indent=2) + "\n")):
        with tf.io.gfile.GFile(f"{folder}/{name}.partial", "w") as file:
            file.write(content)
        tf.io.gfile.rename(f"{folder}/{name}.partial", f"{folder}/{name}", overwrite=True)
