"""Trains the runs of a study one after the other, then writes its page; finished runs are not repeated."""

import gc
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from estimates import exaflops_of, images_of
from ml_collections import ConfigDict
from report import write_page
from scales import Scale
from study import Study, rows_of, start_of

from keras_vit import checkpoints, evaluation, files, recipes, training
from keras_vit.inspection.report import write_report


def make(
    study: Study, scale: Scale, folder: str | os.PathLike, write: Callable[[str], object] = print
) -> list[dict[str, Any]]:
    """Makes all runs of a study and writes `table.csv`, `table.md`, `picture.png` and `index.html`.

    Every run is a `training.run` in its own folder, `runs/<name>`. The same call resumes an interrupted study: finished
    runs are not repeated, and the current one continues from its last checkpoint.

    Args:
        study: a `Study`.
        scale: a `Scale`.
        folder: local folder of the study, for one scale.
        write: called with lines of progress.

    Returns:
        The rows of the table, dicts.

    Raises:
        ValueError: a config cannot be satisfied, or the folder belongs to runs of other configs.
        Preempted: the process received SIGTERM; the same call resumes.
    """
    if files.is_remote(folder):
        raise ValueError(f"A study needs a local folder, where its weights are saved. Received: folder={folder}")
    runs = study.runs(scale)
    results = {}
    for number, run in enumerate(runs, start=1):
        write(f"run {number} of {len(runs)}: {run.name}")
        results[run.name] = make_run(study, run, runs, folder, write)
    rows = rows_of(study, runs, results)
    write_page(study, scale, runs, rows, folder, write)
    return rows


def make_run(study, run, runs, folder, write=print):
    """Trains one run of a study unless it is finished; returns its results, a flat dict of numbers.

    Args:
        study, folder, write: as in `make`.
        run: the `Run`.
        runs: all runs of the study, including the one that it starts from.

    Raises:
        ValueError: as `make`, or the run that it starts from is not finished.
    """
    if run.results:
        return run.results
    folder = files.as_path(folder) / "runs"
    start, config, workdir = _open(run, runs, folder)
    results = workdir.results()
    if results is not None:
        return results
    with workdir.lock():
        if study.measure is not None:
            results = study.measure(config)
        else:
            results = _train(study, run, start or run, config, workdir, write)
        workdir.write_results(results)
    gc.collect()  # frees the model, which has reference cycles
    return results


def _open(run, runs, folder):
    """Returns the `Run` that a run starts from, its config and its `Workdir`."""
    starts = [other for other in runs if other.name in run.start]
    done = {other.name: _open(other, runs, folder)[2].results() for other in starts}
    missing = [name for name, results in done.items() if results is None]
    if missing:
        raise ValueError(f"The run {run.name!r} starts from {missing[0]!r}, which is not finished. Received: {folder}")
    start = start_of(run, runs, done)
    config = config_of(run, start, folder)
    # Relative, so that the folder can be moved.
    recorded = config.to_dict() | ({} if start is None else {"weights": f"../{start.name}/weights.npz"})
    return start, config, training.Workdir(folder / run.name, recorded)


def _train(study, run, counted, config, workdir, write):
    """Trains a run, saves its weights and returns its results.

    `counted` is the `Run` whose images and exaFLOPs go into the table: the pre-training, also for a fine-tuning.
    """
    result = training.run(config, workdir, write, evaluators=evaluation.get(config.evals))
    with files.atomic_path(workdir.path / "weights.npz", ".npz") as path:
        checkpoints.save(result.model, path)
    if study.inspected:
        _inspect(result, workdir.path / "inspection", run.name, write)
    return {**result.metrics, "study/images": images_of(counted), "study/exaflops": exaflops_of(counted)}


def config_of(run, start=None, folder=""):
    """Returns the `ConfigDict` of a run.

    Args:
        run: the `Run`.
        start: the `Run` whose weights it starts from; None for those of its config.
        folder: the folder of the study's runs.
    """
    weights = {} if start is None else {"weights": str(folder / start.name / "weights.npz")}
    return ConfigDict(recipes.defaults(**{**run.config, **weights}))


def _inspect(result, folder, title, write):
    images = np.asarray(next(iter(result.inputs.eval_batches()))[0])[:32]
    try:
        write_report(result.model, images, folder, title=title, write=write)
    except ImportError as error:
        write(f"warning: no pictures of the model: {error}")
