"""What a study is: runs of the main job, what is compared of them, and what the paper found."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# What most studies compare: few-shot accuracy, on the digits at small scale, and that on the data of the run itself.
FEWSHOT_METRICS = {"5-shot": ("fewshot:digits/5shot", "fewshot:imagenet2012/5shot"), "accuracy": "accuracy"}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study.

    Attributes:
        name: of its folder.
        config: what differs from `recipes.defaults`, a nested dict.
        columns: what the table says of it, by the name of each column.
        paper: what the paper measured of the same, by the names of the study's metrics; {} where it did not.
        start: the names of earlier runs, one of whose weights this one starts from: of several the run with the best
            accuracy on its own test split. () for the weights of its config.
        is_row: whether it is a row of the table; a pre-training may be none.
        results: its results, where they are known without making it.
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
    """One or more tables and figures of the paper.

    Attributes:
        title: what the page is called.
        question: what is compared, in a sentence.
        runs: from a `Scale` to the list of `Run`s; a run comes after those that it starts from.
        metrics: what the table shows, by the name of each column the metric of the test, or several of which the first
            one that was measured counts, as in `FEWSHOT_METRICS`.
        picture: `(kind, x, y, group)`: "bars" of y for each row, or "lines" of y over x, one for each value of the
            column `group`; names of columns or metrics. y may be several, a panel each.
        notes: what the paper does not say, and what was chosen; sentences.
        inspected: whether each run is looked into as well: attention, its distance, filters and positions.
        measure: what a run does where it is not a training: from its `ConfigDict` to a dict of numbers.
    """

    title: str
    question: str
    runs: Callable
    metrics: dict
    picture: tuple
    notes: tuple = ()
    inspected: bool = False
    measure: Callable | None = None


def transfer(name, pretraining, finetunings, columns):
    """The runs of a pre-training, which is no row of the table, and of all that is fine-tuned from it.

    Args:
        name: of the pre-training.
        pretraining: its config.
        finetunings: `{ending: (config, columns, paper)}`, by what follows the name in theirs.
        columns: of all of them.
    """
    return [
        Run(name, pretraining, columns, is_row=False),
        *(
            Run(f"{name}-{ending}", config, {**columns, **more}, paper, start=(name,))
            for ending, (config, more, paper) in finetunings.items()
        ),
    ]


def metric_name(name):
    """What a study calls a metric of a run's results: without `test/` and the folder of an evaluator's data."""
    return re.sub(r"@.*/", "/", name.removeprefix("test/"))


def start_of(run: Run, runs: Sequence[Run], results: Mapping[str, Mapping[str, float]]) -> Run | None:
    """The `Run` whose weights a run starts from: of several the one with the best accuracy; None where there is none.

    Args:
        run: the `Run`.
        runs: all of its study.
        results: by the name of each of those in `run.start` its results.
    """
    candidates = [other for other in runs if other.name in run.start]
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    return max(candidates, key=lambda other: results[other.name]["test/accuracy"])


def rows_of(study: Study, runs: Sequence[Run], results: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """The rows of a study's table: dicts of columns, metrics, the paper's metrics and the cost.

    Args:
        study: the `Study`.
        runs: its `Run`s.
        results: by the name of each run its results, a flat dict of numbers.
    """
    rows = []
    for run in runs:
        if not run.is_row:
            continue
        values = {metric_name(name): value for name, value in results[run.name].items()}
        # Of a run that starts from the best one of several, the columns say which one that was.
        chosen = (start_of(run, runs, results) if len(run.start) > 1 else None) or run
        row = {"run": run.name, **chosen.columns, **run.columns}
        for name, candidates in study.metrics.items():
            candidates = (candidates,) if isinstance(candidates, str) else candidates
            row[name] = next((values[metric] for metric in candidates if metric in values), None)
        row |= {f"{name}, paper": value for name, value in run.paper.items()}
        rows.append({**row, "images": values.get("study/images"), "exaFLOPs": values.get("study/exaflops")})
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]
