"""Studies: training runs, the metrics to compare, and the paper's results."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# The metrics of several studies: few-shot accuracy, on digits or on ImageNet, and accuracy on the
# run's own test split.
FEWSHOT_METRICS = {
    "5-shot": ("fewshot:digits/5shot", "fewshot:imagenet2012/5shot"),
    "accuracy": "accuracy",
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study.

    Attributes:
        name: name of the run and of its folder.
        config: changes to `recipes.defaults`, a nested dict.
        columns: values in the table that describe the run, by column name.
        paper: the paper's results by metric name; {} if the paper has no comparable number.
        start: names of earlier runs. This run starts from the weights of the most accurate one. If
            `start` is (), this run starts as its config specifies.
        is_row: whether the table has a row for this run; False for pre-trainings.
        results: the run's results if they are known without training; otherwise {}.
    """

    name: str
    config: dict
    columns: dict
    paper: dict = dataclasses.field(default_factory=dict)
    start: tuple = ()
    is_row: bool = True
    results: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Study:
    """A comparison that repeats one or more tables and figures of the paper.

    Attributes:
        title: title of the page.
        question: the question that the study answers, in a sentence.
        runs_of: a function from a `Scale` to the `Run`s with seed 0. Every run follows the runs
            named in its `start`.
        metrics: maps each column to a test metric or to several candidates, as in
            `FEWSHOT_METRICS`. The table shows the first candidate that was measured.
        picture: `(kind, x, y, group)`, as in `plots.picture`. y is the name of a column, or a tuple
            of names.
        panels: a function from the rows to a dict `{title: rows}`, drawn separately; None to draw
            all rows together.
        notes: sentences about choices that the paper does not specify.
        inspected: whether to write an inspection report for each trained run.
        measure: a function from a `ConfigDict` to a dict of numbers, called instead of training;
            None to train.
    """

    title: str
    question: str
    runs_of: Callable[..., Iterable[Run]]
    metrics: dict
    picture: tuple
    panels: Callable | None = None
    notes: tuple = ()
    inspected: bool = False
    measure: Callable | None = None

    def runs(self, scale) -> list[Run]:
        """Returns the runs at a `Scale`, for each of its seeds."""
        return scale.with_seeds(list(self.runs_of(scale)))


def transfer(name, pretraining, finetunings, columns):
    """Returns a pre-training run, which is not a row of the table, and its fine-tuning runs.

    Args:
        name: name of the pre-training.
        pretraining: its config.
        finetunings: `{suffix of the name: (config, columns, paper)}`, with `columns` and `paper` as
            in `Run`.
        columns: columns that all runs share.
    """
    return [
        Run(name, pretraining, columns, is_row=False),
        *(
            Run(f"{name}-{ending}", config, {**columns, **more}, paper, start=(name,))
            for ending, (config, more, paper) in finetunings.items()
        ),
    ]


def metric_name(name):
    """Removes `test/` and the folder of an evaluator's data from the name of a result."""
    return re.sub(r"@.*/", "/", name.removeprefix("test/"))


def start_of(
    run: Run, runs: Sequence[Run], results: Mapping[str, Mapping[str, float]]
) -> Run | None:
    """Returns the run whose weights `run` starts from: the most accurate of `run.start`, or None if
    that is empty.

    Args:
        run: the `Run`.
        runs: all runs of its study.
        results: the results of the runs in `run.start`, by name.
    """
    candidates = [other for other in runs if other.name in run.start]
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    return max(candidates, key=lambda other: results[other.name]["test/accuracy"])


def rows_of(
    study: Study, runs: Sequence[Run], results: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Returns the rows of a study's table: dicts of columns, metrics, the paper's metrics and the
    cost.

    Args:
        study: the `Study`.
        runs: its `Run`s.
        results: the results of each run by name, flat dicts of numbers.
    """
    rows = []
    for run in runs:
        if not run.is_row:
            continue
        values = {metric_name(name): value for name, value in results[run.name].items()}
        # If a run starts from the best of several runs, its row includes the columns of the best
        # run.
        chosen = (start_of(run, runs, results) if len(run.start) > 1 else None) or run
        row = {"run": run.name, **chosen.columns, **run.columns}
        for name, candidates in study.metrics.items():
            candidates = (candidates,) if isinstance(candidates, str) else candidates
            row[name] = next((values[metric] for metric in candidates if metric in values), None)
        row |= {f"{name}, paper": value for name, value in run.paper.items()}
        rows.append(
            {**row, "images": values.get("study/images"), "exaFLOPs": values.get("study/exaflops")}
        )
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]
