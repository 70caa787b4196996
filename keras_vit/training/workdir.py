"""The folder of one run: its config, its checkpoints and its results."""

import json
import platform
import sys

import keras
import numpy as np

from keras_vit import files
from keras_vit.training.hosts import is_chief


class Workdir:
    """A folder that belongs to one config.

    Args:
        path: the folder, local or remote ("gs://bucket/run"); created if it does not exist. All hosts of a run share
            it, and the chief writes.
        config: nested dict of plain values, the recipe of the run.

    Attributes:
        path, checkpoints, export, tensorboard: the folder and folders in it, which `/` extends.

    Raises:
        ValueError: the folder cannot be written, or belongs to a run with another config.
    """

    def __init__(self, path, config):
        self.path = files.as_path(path)
        self.checkpoints = self.path / "checkpoints"
        self.export = self.path / "export"
        self.tensorboard = self.path / "tensorboard"
        try:
            files.make_dirs(self.path)
            self._claim(_flat(config))
            if self.results() is None:
                self._write_json("command.json", _command(config))
        except OSError as error:
            raise ValueError(
                f"The workdir must be a folder that can be written ({error.strerror or error}). "
                f"Received: workdir={path}"
            ) from error

    def results(self):
        """The results of the run if it is done, else None."""
        return files.read_json(self.path / "results.json")

    def write_results(self, results):
        """Writes the results, a flat dict of numbers; the run is done."""
        self._write_json("results.json", results)

    def _claim(self, config):
        config = json.loads(json.dumps(config))  # as it will be read back: a tuple becomes a list
        existing = files.read_json(self.path / "config.json")
        if existing is not None:
            names = sorted(n for n in config.keys() | existing.keys() if config.get(n) != existing.get(n))
            if names:
                difference = ", ".join(f"{n} was {existing.get(n)!r} and is {config.get(n)!r}" for n in names)
                raise ValueError(
                    f"The workdir belongs to a run with another config: {difference}. Choose another workdir. "
                    f"Received: workdir={self.path}"
                )
        self._write_json("config.json", config)

    def _write_json(self, name, content):
        if is_chief():
            files.write_json(self.path / name, content)


def _command(config):
    """What it takes to repeat the run: the last command of this folder, the seed and the versions."""
    return {
        "command": sys.argv,
        "seed": config.get("seed"),
        "versions": {
            "python": platform.python_version(),
            "keras": keras.__version__,
            keras.backend.backend(): sys.modules[keras.backend.backend()].__version__,
            "numpy": np.__version__,
        },
    }


def _flat(config, prefix=""):
    """`{"model": {"classes": 10}}` as `{"model.classes": 10}`."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
