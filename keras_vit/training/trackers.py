"""Sends the metrics of a run to MLflow or Weights & Biases, through their own clients."""

import contextlib
import importlib
import importlib.util
import os
import re

from keras_vit import files, terminal


class MLflow:
    """A run of MLflow; `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` choose where it is."""

    def __init__(self, name, config, run_id):
        self._mlflow = importlib.import_module("mlflow")
        self._mlflow.start_run(run_id=run_id, run_name=None if run_id else name)
        self.run_id = self._mlflow.active_run().info.run_id
        if run_id is None:  # MLflow refuses a second value
            self._mlflow.log_params(config)

    def write(self, step, values):
        # MLflow refuses other characters, as in the name of a class.
        named = {re.sub(r"[^/\w.\- ]", "_", name): value for name, value in values.items()}
        self._mlflow.log_metrics(named, step=step)

    def close(self):
        self._mlflow.end_run()


class WeightsAndBiases:
    """A run of Weights & Biases; `WANDB_PROJECT` and `WANDB_MODE` choose where it is."""

    def __init__(self, name, config, run_id):
        wandb = importlib.import_module("wandb")
        # Its capture of the console would break progress bars.
        settings = wandb.Settings(console="off")
        self._run = wandb.init(
            name=name, config=config, id=run_id, resume="allow", settings=settings
        )
        self.run_id = self._run.id

    def write(self, step, values):
        self._run.log(values, step=step)

    def close(self):
        self._run.finish()


TRACKERS = {"mlflow": MLflow, "wandb": WeightsAndBiases}


def check(name):
    """Raises a `ValueError` unless the name is "" or an installed tracker."""
    if name and name not in TRACKERS:
        raise ValueError(
            f"--tracker must be one of {', '.join(TRACKERS)}. Received: tracker={name!r}"
        )
    if name and importlib.util.find_spec(name) is None:
        raise ValueError(
            f"--tracker={name} needs the package {name}; run: pip install {name}. "
            f"Received: tracker={name!r}"
        )


class Tracker:
    """A tracker that never stops training: it prints its first error and then does nothing.

    The tracker's id of the run is in `tracker.json` in the workdir, so a resumed run continues it.
    """

    def __init__(self, name, workdir, write):
        self._name = name
        self._print = write
        self._tracker = None
        file = workdir.path / "tracker.json"
        with self._printed_errors():
            ids = files.read_json(file) or {}
            config = files.read_json(workdir.path / "config.json")
            run_name = os.path.basename(str(workdir.path))
            self._tracker = TRACKERS[name](run_name, config, ids.get(name))
            files.write_json(file, {**ids, name: self._tracker.run_id})
            write(f"metrics go to {name}, run {self._tracker.run_id}")

    def write(self, step, values):
        """Sends the values of one step, a dict with keys such as "train/loss"."""
        if self._tracker is not None:
            with self._printed_errors():
                self._tracker.write(step, {name: float(value) for name, value in values.items()})

    def close(self):
        if self._tracker is not None:
            with self._printed_errors():
                self._tracker.close()

    @contextlib.contextmanager
    def _printed_errors(self):
        try:
            yield
        except Exception as error:
            self._tracker = None
            self._print(
                f"{self._name} failed, so it gets no more metrics until the run resumes: "
                f"{terminal.first_line(error)}"
            )
