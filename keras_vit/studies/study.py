"""What a study is: runs of the main job, what is compared of them, and what the paper found."""

import dataclasses
import re
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study.

    Attributes:
        name: of its folder.
        config: what differs from `recipes.defaults`, a nested dict.
        columns: what the table says of it, by the name of each column.
        paper: what the paper measured of the same, by the names of the study's metrics; {} where it did not.
        start: the name of an earlier run whose weights this one starts from; "" for those of its config.
        is_row: whether it is a row of the table; a pre-training may be none.
    """

    name: str
    config: dict
    columns: dict
    paper: dict = dataclasses.field(default_factory=dict)
    start: str = ""
    is_row: bool = True


@dataclasses.dataclass(frozen=True)
class Study:
    """One or more tables and figures of the paper.

    Attributes:
        title: what the page is called.
        question: what is compared, in a sentence.
        runs: from a `Scale` to the list of `Run`s; a run comes after the one that it starts from.
        metrics: what the table shows, by the name of each column the metric of the test, or several of which the first
            one that was measured counts: `{"5-shot": ("fewshot:digits/5shot", "fewshot:imagenet2012/5shot")}`.
        picture: `(kind, x, y, group)`: "bars" of y for each row, or "lines" of y over x, one for each value of the
            column `group`; names of columns or metrics.
        notes: what the paper does not say, and what was chosen; sentences.
        inspected: whether each run is looked into as well: attention, its distance, filters and positions.
    """

    title: str
    question: str
    runs: Callable
    metrics: dict
    picture: tuple
    notes: tuple = ()
    inspected: bool = False


def metric_name(name):
    """What a study calls a metric of a run's results: without `test/` and the folder of an evaluator's data."""
    return re.sub(r"@.*/", "/", name.removeprefix("test/"))


def rows_of(study, runs, results):
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
        row = {"run": run.name, **run.columns}
        for name, candidates in study.metrics.items():
            candidates = (candidates,) if isinstance(candidates, str) else candidates
            row[name] = next((values[metric] for metric in candidates if metric in values), None)
        row |= {f"{name}, paper": value for name, value in run.paper.items()}
        rows.append({**row, "images": values["study/images"], "exaFLOPs": values["study/exaflops"]})
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]
