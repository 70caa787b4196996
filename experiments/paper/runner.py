"""Making a study: its runs, one after the other, and then its page. What is done is not done again."""

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

    Every run is one of `training.run` in a folder of its own, `runs/<name>`. The same call goes on where an interrupted
    one stopped, within a run from its last checkpoint, and repeats no run that is done.

    Args:
        study: a `Study`.
        scale: a `Scale`.
        folder: of the study, local; it belongs to one scale.
        write: takes lines that say how it is going.

    Returns:
        The rows of the table, dicts.

    Raises:
        ValueError: a config cannot be satisfied, or the folder belongs to runs of other configs.
        Preempted: SIGTERM came; the same call goes on.
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
    """Makes one run of a study, unless it is done; gives its results, a flat dict of numbers.

    Args:
        study, folder, write: as of `make`.
        run: the `Run`.
        runs: all of the study, among them the one that it starts from.

    Raises:
        ValueError: as `make`; or the run that it starts from is not done.
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
    gc.collect()  # the model, whose parts refer to one another
    return results


def _open(run, runs, folder):
    """The `Run` that a run starts from, its config and its `Workdir`."""
    starts = [other for other in runs if other.name in run.start]
    done = {other.name: _open(other, runs, folder)[2].results() for other in starts}
    missing = [name for name, results in done.items() if results is None]
    if missing:
        raise ValueError(f"The run {run.name!r} starts from {missing[0]!r}, which is not done. Received: {folder}")
    start = start_of(run, runs, done)
    config = config_of(run, start, folder)
    # Relative, so that the folder can be moved.
    recorded = config.to_dict() | ({} if start is None else {"weights": f"../{start.name}/weights.npz"})
    return start, config, training.Workdir(folder / run.name, recorded)


def _train(study, run, counted, config, workdir, write):
    """Trains as the main job does, saves the weights, and gives the results.

    Args:
        counted: the `Run` whose images and exaFLOPs are those of the table: the pre-training, also of a run that only
            fine-tunes.
    """
    result = training.run(config, workdir, write, evaluators=evaluation.get(config.evals))
    with files.atomic_path(workdir.path / "weights.npz", ".npz") as path:
        checkpoints.save(result.model, path)
    if study.inspected:
        _inspect(result, workdir.path / "inspection", run.name, write)
    return {**result.metrics, "study/images": images_of(counted), "study/exaflops": exaflops_of(counted)}


def config_of(run, start=None, folder=""):
    """The config of a run, a `ConfigDict`.

    Args:
        run: the `Run`.
        start: the `Run` whose weights it starts from; None for those of its own config.
        folder: of the runs of its study.
    """
    weights = {} if start is None else {"weights": str(folder / start.name / "weights.npz")}
    return ConfigDict(recipes.defaults(**{**run.config, **weights}))


def _inspect(result, folder, title, write):
    images = np.asarray(next(iter(result.inputs.eval_batches()))[0])[:32]
    try:
        write_report(result.model, images, folder, title=title, write=write)
    except ImportError as error:
        write(f"warning: no pictures of the model: {error}")
