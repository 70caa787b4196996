"""Compares the runs of a sweep: chooses the best rate, and writes and prints the table."""

import math
import statistics

from keras_vit import files
from keras_vit.training.counters import score
from keras_vit.training.metrics import write_rows
from keras_vit.training.progress import format_metrics

_NO_METRICS = ("run", "rate", "seed", "name")  # the other entries of a row


def _diverged(row):
    """Returns whether a run diverged, according to its loss.

    `skip_nonfinite` can keep the accuracy finite, and an evaluator that failed has NaN without a
    divergence.
    """
    return math.isnan(row["loss"])


def best_rate(rows, best_metric="accuracy"):
    """Returns the rate with the best metric, using the lower loss to break ties."""
    if all(map(_diverged, rows)):
        raise ValueError(
            "Training diverged at every rate; pass lower --rates. Received: no finite loss"
        )
    rows = [row for row in rows if not math.isnan(row[best_metric] + row["loss"])]
    if not rows:
        raise ValueError(
            "No run has a value of --config.best_metric to choose the rate by. Received: "
            f"best_metric={best_metric!r}, NaN at every rate"
        )
    return max(rows, key=lambda row: (score(best_metric, row[best_metric]), -row["loss"]))["rate"]


def summary(rows, best_metric="accuracy"):
    """Returns the lines of the table, and lines with the mean and standard deviation over several
    final runs or over folds."""
    lines = ["run    rate      seed  metrics"]
    for row in rows:
        metrics = {name: value for name, value in row.items() if name not in _NO_METRICS}
        text = "diverged" if _diverged(row) else format_metrics(metrics)
        lines.append(f"{row['run']:5}  {row['rate']:<8.4g}  {row['seed']:<4}  {text}")
    for row in spread(rows, "final"):
        if row["metric"] == best_metric and row["runs"] > 1:
            mean = format_metrics({best_metric: row["mean"]})
            deviation = f"standard deviation {row['deviation']:.2g}"
            lines.append(f"final {mean}, {deviation} over {row['runs']} seeds")
    for row in spread(rows, "fold"):
        mean, lowest, highest = (
            format_metrics({row["metric"]: row[name]}) for name in ("mean", "lowest", "highest")
        )
        without = f", without {row['diverged']} that diverged" if row["diverged"] else ""
        lines.append(
            f"rate {row['rate']:.4g}: mean {mean}, standard deviation {row['deviation']:.2g}, "
            f"from {lowest} to {highest} over {row['runs']} runs{without}"
        )
    return lines


def spread(rows, run):
    """Returns a dict for each rate and metric of the runs "final" or "fold", with the mean,
    deviation and range.

    `runs` counts the runs that have the metric.
    """
    spreads = []
    rows = [row for row in rows if row["run"] == run]
    for rate in dict.fromkeys(row["rate"] for row in rows):
        of_rate = [row for row in rows if row["rate"] == rate]
        good = [row for row in of_rate if not _diverged(row)]
        for metric in dict.fromkeys(name for row in good for name in row):
            if metric in _NO_METRICS or metric.endswith("examples"):
                continue
            # A run may lack a metric, for example of a class without test images.
            values = [row[metric] for row in good if not math.isnan(row.get(metric, math.nan))]
            if values:
                spreads.append(
                    {
                        "rate": rate,
                        "metric": metric,
                        "mean": statistics.mean(values),
                        "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
                        "lowest": min(values),
                        "highest": max(values),
                        "runs": len(values),
                        "diverged": len(of_rate) - len(good),
                    }
                )
    return spreads


def write_table(folder, rows):
    """Writes the metrics of every run to `table.csv` and `table.json`."""
    folder = files.as_path(folder)
    files.make_dirs(folder)
    write_rows(folder / "table.csv", rows)
    files.write_json(folder / "table.json", rows)
