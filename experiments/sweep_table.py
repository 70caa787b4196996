"""What a sweep does and the table that it writes, whatever a run is."""

import csv
import io
import statistics

from keras_vit import files
from keras_vit.training.loop import is_better
from keras_vit.training.progress import format_metrics


def make_rows(train, *, rates, seeds, tune_seed, held_out, best_metric="accuracy"):
    """Makes all runs: each rate on the held-out part, then the best one with each seed on everything.

    Args:
        train: `train(name, changes)` makes a run, with these changes of the config, and returns its results.
        rates: the learning rates to compare.
        seeds: of the final runs.
        tune_seed: of the runs that compare.
        held_out: the changes of the config that make it train and test on parts of train.
        best_metric: the metric that decides, as in a config.

    Returns:
        A list of rows, dicts of `run` ("tune" or "final"), `rate`, `seed`, every metric of the test, and `name`.
    """

    def row(run, name, changes, rate, seed):
        results = train(name, changes)
        metrics = {key.removeprefix("test/"): value for key, value in results.items() if key.startswith("test/")}
        return {"run": run, "rate": rate, "seed": seed, **metrics, "name": name}

    tuned = [
        row("tune", f"rate={rate:g}", {"schedule.base": rate, "seed": tune_seed, **held_out}, rate, tune_seed)
        for rate in rates
    ]
    best = best_rate(tuned, best_metric)
    return tuned + [
        row("final", f"final-rate={best:g}-seed={seed}", {"schedule.base": best, "seed": seed}, best, seed)
        for seed in seeds
    ]


def best_rate(rows, best_metric="accuracy"):
    """The rate of the row with the best metric; of those with equal metrics, the one with the lowest loss."""
    best = rows[0]
    for row in rows[1:]:
        better = is_better(best_metric, row[best_metric], best[best_metric])
        if better or (row[best_metric] == best[best_metric] and is_better("loss", row["loss"], best["loss"])):
            best = row
    return best["rate"]


def metrics_of(row):
    """The metrics in a row, by name."""
    return {name: value for name, value in row.items() if name not in ("run", "rate", "seed", "name")}


def summary(rows, best_metric="accuracy"):
    """The lines to print: a row each, and the mean and deviation of the final runs."""
    lines = ["run    rate      seed  metrics"]
    for row in rows:
        lines.append(f"{row['run']:5}  {row['rate']:<8g}  {row['seed']:<4}  {format_metrics(metrics_of(row))}")
    final = [row[best_metric] for row in rows if row["run"] == "final"]
    if len(final) > 1:
        spread = {best_metric: statistics.mean(final)}, {best_metric: statistics.stdev(final)}
        mean, deviation = (format_metrics(metric).removeprefix(f"{best_metric} ") for metric in spread)
        lines.append(f"final {best_metric}: {mean} +- {deviation} over {len(final)} seeds, the deviation of one run")
    return lines


def write_table(folder, rows):
    """Writes the rows to `table.json` and `table.csv`, each at once. Local or remote."""
    folder = files.as_path(folder)
    text = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with files.atomic_write(folder / "table.csv") as file:
        file.write(text.getvalue())
    files.write_json(folder / "table.json", rows)
