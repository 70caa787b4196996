"""The folder of one run: its config, its checkpoints and its results."""

import json
import platform
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_vit.training.strategy import is_chief


class Workdir:
    """A folder that belongs to one config.

    Args:
        path: the folder, on this machine or wherever `tf.io.gfile` reaches ("gs://bucket/run"); made if it is not
            there. All workers of a run share it, and the first one writes.
        config: nested dict of plain values, what the run is asked to do.

    Attributes:
        path, checkpoints, export, tensorboard: the folder and folders in it, which `/` goes on from.

    Raises:
        ValueError: the folder cannot be written, or belongs to a run with another config.
    """

    def __init__(self, path, config):
        self.path = _Remote(str(path).rstrip("/")) if "://" in str(path) else Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.export = self.path / "export"
        self.tensorboard = self.path / "tensorboard"
        try:
            tf.io.gfile.makedirs(str(self.path))
            self._claim(_flat(config))
            if self.results() is None:
                self._write_json("command.json", _command(config))
        except (OSError, tf.errors.OpError) as error:
            reason = getattr(error, "strerror", None) or getattr(error, "message", error)
            raise ValueError(
                f"The workdir must be a folder that can be written ({reason}). Received: workdir={path}"
            ) from error

    def results(self):
        """The results of the run if it is done, else None."""
        return self._read_json("results.json")

    def write_results(self, results):
        """Writes the results, a flat dict of numbers; the run is done."""
        self._write_json("results.json", results)

    def _claim(self, config):
        config = json.loads(json.dumps(config))  # as it will be read back: a tuple becomes a list
        theirs = self._read_json("config.json")
        if theirs is not None:
            names = sorted(n for n in config.keys() | theirs.keys() if config.get(n) != theirs.get(n))
            if names:
                difference = ", ".join(f"{n} was {theirs.get(n)!r} and is {config.get(n)!r}" for n in names)
                raise ValueError(
                    f"The workdir belongs to a run with another config: {difference}. Take another workdir. "
                    f"Received: workdir={self.path}"
                )
        self._write_json("config.json", config)

    def _read_json(self, name):
        file = str(self.path / name)
        if not tf.io.gfile.exists(file):
            return None
        with tf.io.gfile.GFile(file) as opened:
            return json.loads(opened.read())

    def _write_json(self, name, content):
        if not is_chief():
            return
        file = str(self.path / name)
        with tf.io.gfile.GFile(f"{file}.partial", "w") as partial:
            partial.write(json.dumps(content, indent=2, sort_keys=True) + "\n")
        tf.io.gfile.rename(f"{file}.partial", file, overwrite=True)


class _Remote(str):
    """A path that `pathlib` would not leave as it is."""

    def __truediv__(self, name):
        return _Remote(f"{self}/{name}")


def _command(config):
    """What was run, to run it again: the last command of this folder, the seed and the versions."""
    return {
        "command": sys.argv,
        "seed": config.get("seed"),
        "versions": {
            "python": platform.python_version(),
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
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
