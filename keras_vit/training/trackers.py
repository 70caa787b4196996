"""Sends the metrics of a run to MLflow or Weights & Biases, through their own clients."""

import contextlib
import importlib
import importlib.util
import os
import re

from keras_vit import files, terminal
from keras_vit.training import preemption


def _start_mlflow(name, config, run_id):
    """Starts or continues a run of MLflow and returns its id and the functions `write(step,
    values)` and `close()`; `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` choose where it is.
    """
    mlflow = importlib.import_module("mlflow")
    mlflow.start_run(run_id=run_id, run_name=None if run_id else name)
    if run_id is None:  # MLflow refuses a second value
        mlflow.log_params(config)

    def write(step, values):
        # MLflow refuses other characters, as in the name of a class.
        named = {re.sub(r"[^/\w.\- ]", "_", name): value for name, value in values.items()}
        mlflow.log_metrics(named, step=step)

    return mlflow.active_run().info.run_id, write, lambda: mlflow.end_run()


def _start_wandb(name, config, run_id):
    """Works like `_start_mlflow` for Weights & Biases; `WANDB_PROJECT` and `WANDB_MODE` choose
    where the run is."""
    wandb = importlib.import_module("wandb")
    # Its capture of the console would break progress bars.
    settings = wandb.Settings(console="off")
    run = wandb.init(name=name, config=config, id=run_id, resume="allow", settings=settings)
    return run.id, lambda step, values: run.log(values, step=step), run.finish


TRACKERS = {"mlflow": _start_mlflow, "wandb": _start_wandb}


def check(name):
    """Raises a `ValueError` unless the name is "" or an installed tracker."""
    if name and name not in TRACKERS:
        raise ValueError(
            f"--tracker must be one of {', '.join(TRACKERS)}. Received: tracker={name!r}"
        )
    if name and importlib.util.find_spec(name) is None:
        raise ValueError(
            f"The tracker is not installed; run: pip install {name}. Received: tracker={name!r}"
        )


class Tracker:
    """A tracker that never stops training: it prints its first error and then does nothing.

    The tracker's id of the run is in `tracker.json` in the workdir, so a resumed run continues it.
    """

    def __init__(self, name, workdir, write):
        self._name = name
        self._print = write
        with self._printed_errors():
            file = workdir.path / "tracker.json"
            ids = files.read_json(file) or {}
            config = files.read_json(workdir.path / "config.json")
            run_name = os.path.basename(str(workdir.path))
            run_id, self._write, self._close = TRACKERS[name](run_name, config, ids.get(name))
            files.write_json(file, {**ids, name: run_id})
            write(f"metrics go to {name}, run {run_id}")

    def write(self, step, values):
        """Sends the values of one step, a dict with keys such as "train/loss"."""
        with self._printed_errors():
            self._write(step, {name: float(value) for name, value in values.items()})

    def close(self):
        with self._printed_errors():
            self._close()

    @contextlib.contextmanager
    def _printed_errors(self):
        """Prints an error of the tracker, and makes later calls do nothing."""
        try:
            yield
        except preemption.Preempted:  # a signal that arrived while the tracker was working
            raise
        except Exception as error:
            self._write = self._close = lambda *_: None
            self._print(
                f"{self._name} failed, so it gets no more metrics until the run resumes: "
                f"{terminal.first_line(error)}"
            )
