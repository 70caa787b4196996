"""Executes the runs of a study one after the other, then writes its page; finished runs are not
repeated."""

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
    """Runs a study and writes its table, picture and page, as in `report.write_page`.

    The run `<name>` uses the folder `runs/<name>`. The same call resumes an interrupted study:
    finished runs are not repeated, and interrupted training continues from its last checkpoint.

    Args:
        study: a `Study`.
        scale: a `Scale`.
        folder: local folder for the study at this scale.
        write: called with each line of progress.

    Returns:
        The rows of the table, as dicts.

    Raises:
        ValueError: a config is invalid, or the folder is remote or belongs to runs with other
            configs.
        Preempted: the process received SIGTERM; the same call resumes.
    """
    if files.is_remote(folder):
        raise ValueError(
            "The folder of a study must be local, because runs save their weights there. "
            f"Received: folder={folder}"
        )
    runs = study.runs(scale)
    results = {}
    for number, run in enumerate(runs, start=1):
        write(f"run {number} of {len(runs)}: {run.name}")
        results[run.name] = make_run(study, run, runs, folder, write)
    rows = rows_of(study, runs, results)
    write_page(study, scale, runs, rows, folder, write)
    return rows


def make_run(study, run, runs, folder, write=print):
    """Executes one run of a study unless it is finished; returns its results, a flat dict of
    numbers.

    Args:
        study, folder, write: as in `make`.
        run: the `Run`.
        runs: all runs of the study.

    Raises:
        ValueError: as in `make`, or a run in `run.start` is not finished.
        Preempted: as in `make`.
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
            # A run that starts from another counts the images of that pre-training.
            results = _train(study, run, start or run, config, workdir, write)
        workdir.write_results(results)
    gc.collect()  # frees the model, which has reference cycles
    return results


def _open(run, runs, folder):
    """Returns `(start, config, workdir)`; `start` is the `Run` from whose weights `run` starts, or
    None."""
    starts = [other for other in runs if other.name in run.start]
    done = {other.name: _open(other, runs, folder)[2].results() for other in starts}
    missing = [name for name, results in done.items() if results is None]
    if missing:
        raise ValueError(
            f"The run {run.name!r} starts from {missing[0]!r}, which is not finished. Received: "
            f"{folder}"
        )
    start = start_of(run, runs, done)
    config = config_of(run, start, folder)
    recorded = config.to_dict()
    if start is not None:
        # A relative path, so that the folder can be moved.
        recorded["weights"] = f"../{start.name}/weights.npz"
    return start, config, training.Workdir(folder / run.name, recorded)


def _train(study, run, counted, config, workdir, write):
    """Trains a run, saves its weights and returns its results.

    `counted` is the `Run` whose images and exaFLOPs go into the table. If the run
    starts from the weights of another run, `counted` is that other run.
    """
    result = training.run(config, workdir, write, evaluators=evaluation.get(config.evals))
    with files.atomic_path(workdir.path / "weights.npz", ".npz") as path:
        checkpoints.save(result.model, path)
    if study.inspected:
        _inspect(result, workdir.path / "inspection", run.name, write)
    return {
        **result.metrics,
        "study/images": images_of(counted),
        "study/exaflops": exaflops_of(counted),
    }


def config_of(run, start=None, folder=None):
    """Returns the `ConfigDict` of a run.

    Args:
        run: the `Run`.
        start: the `Run` from whose weights the run starts; None for the `weights` in the run's
            config.
        folder: path of the folder of the study's runs; needed with `start`.
    """
    weights = {} if start is None else {"weights": str(folder / start.name / "weights.npz")}
    return ConfigDict(recipes.defaults(**{**run.config, **weights}))


def _inspect(result, folder, title, write):
    images = np.asarray(next(iter(result.inputs.eval_batches()))[0])[:32]
    try:
        write_report(result.model, images, folder, title=title, write=write)
    except ImportError as error:
        write(f"warning: the pictures of the model were not drawn: {error}")
