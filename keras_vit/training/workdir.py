"""The folder of a run, with its config, checkpoints and results."""

import contextlib
import json
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import keras
from ml_collections import ConfigDict

from keras_vit import files, recipes
from keras_vit.training.checkpoint_manager import finished_steps
from keras_vit.training.config_changes import (
    check_state_fields,
    differences,
    fixed_changes,
    flat,
)
from keras_vit.training.hosts import is_chief
from keras_vit.training.lock import workdir_lock


class Workdir:
    """The folder of a run, which belongs to one config.

    The constructor only reads files; `claim` writes the config when the run is about to start.

    Args:
        path: the folder, local or remote ("gs://bucket/run"), shared by all hosts of a run.
        config: the config of the run, a nested dict of plain values.
        change: whether an unfinished run may continue with another config. Paths, and fields that
            affect results only by rounding, may always change. None is False, but the error does
            not advise to continue the run.

    Attributes:
        path, checkpoints, export, tensorboard: the folder and its subfolders, as path objects.
        is_chief: whether this is process 0.
        change: as the argument.

    Raises:
        ValueError: the folder belongs to a run with another config, or a file in it is damaged.
    """

    def __init__(
        self, path: str | os.PathLike, config: Mapping[str, Any], change: bool | None = False
    ) -> None:
        self.path = files.as_path(path)
        self.checkpoints = self.path / "checkpoints"
        self.export = self.path / "export"
        self.tensorboard = self.path / "tensorboard"
        self.is_chief = is_chief()  # `run` replaces it with the engine's value
        self.change = change
        self._locked = False
        # The config as `config.json` stores it, with lists instead of tuples.
        self._config = json.loads(json.dumps(flat(config)))
        self._changes = self._compare(change)

    def record_change(self, name: str, before: Any, now: Any) -> None:
        """Adds a change to those that `claim` writes to `changes.json`."""
        self._changes[name] = [before, now]

    def results(self) -> dict[str, Any] | None:
        """Returns the results, or None if the run is not finished; NaN replaces numbers that are
        not finite."""
        results = self._read_json("results.json")
        return results and {
            name: math.nan if value is None else value for name, value in results.items()
        }

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Writes the results, a flat dict of numbers, and thereby marks the run as finished."""
        self._write_json("results.json", dict(results))

    def claim(self, model: Mapping[str, Any] | None = None) -> None:
        """Writes the config, and adds an entry to `changes.json` if the config changed.

        Also writes the command, unless the run is finished.

        Args:
            model: content of `model.json`, as for `read_model`; None writes no such file.

        Raises:
            ValueError: the folder cannot be written, or a file in it is damaged.
        """
        with self._usable():
            files.make_dirs(self.path)
            if self._changes:
                entry = {
                    "step": max(finished_steps(self.checkpoints), default=0),
                    "changes": self._changes,
                }
                self._write_json("changes.json", [*(self._read_json("changes.json") or []), entry])
            if model is not None:
                self._write_json("model.json", model)
            self._write_json("config.json", self._config)
            if self.results() is None:
                self._write_json("command.json", _command(self._config))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Returns a reentrant context in which no other run can use the folder, unless
        `workdir_lock` cannot lock it.

        Raises:
            ValueError: another run uses the folder, or it cannot be written.
        """
        if self._locked or not self.is_chief:
            yield
            return
        with contextlib.ExitStack() as stack:
            is_new = not files.exists(self.path)
            with self._usable():
                files.make_dirs(self.path)
                stack.enter_context(workdir_lock(self.path))
                if not files.is_remote(self.path):
                    # Remove temporary files that a killed process left.
                    files.remove_leftovers(self.path, 0)
                    for folder in self.export.glob("partial-????????"):
                        files.remove_tree(folder)
            self._locked = True
            try:
                yield
            finally:
                self._locked = False
                # If the run was refused, the folder contains only the lock.
                if not files.is_remote(self.path) and os.listdir(self.path) == ["lock"]:
                    os.remove(self.path / "lock")
                    if is_new:
                        os.rmdir(self.path)

    def _compare(self, change):
        """Returns the differences from the stored config as `{name: [before, now]}`, or raises a
        `ValueError`."""
        stored = self._read_json("config.json")
        if stored is None:
            return {}
        changes = differences(stored, self._config)
        is_done = self.results() is not None
        fixed = fixed_changes(changes, self._config, is_done)
        if change:
            check_state_fields(fixed)
        if fixed and (not change or is_done):
            difference = ", ".join(
                f"{name} was {before!r} and is {now!r}" for name, (before, now) in fixed.items()
            )
            advice = ", or continue this run with the new values by `keras-vit train --change`"
            if is_done:
                advice = ", because this run is finished"
            elif change is None:
                advice = ""
            raise ValueError(
                f"The workdir belongs to a run with another config: {difference}. Choose another "
                f"workdir{advice}. Received: workdir={self.path}"
            )
        return changes

    def _read_json(self, name):
        with self._usable():
            return files.read_json(self.path / name)

    def _write_json(self, name, content):
        if self.is_chief:
            with self._usable():
                files.write_json(self.path / name, content)

    def _usable(self):
        advice = "It must be a writable folder."
        return files.explained_errors("The workdir cannot be used", advice, f"workdir={self.path}")


def _command(config):
    """Returns the command, the seed and the versions that are needed to repeat the run."""
    backend = keras.backend.backend()
    modules = ("keras", "numpy", backend)
    versions = {name: sys.modules[name].__version__ for name in modules}
    versions["python"] = platform.python_version()
    return {"command": sys.argv, "seed": config.get("seed"), "versions": versions}


def read_config(path: str | os.PathLike) -> ConfigDict:
    """Reads the config of a run. Fields that its version did not have get their defaults.

    Args:
        path: the workdir of the run, local or remote.

    Raises:
        ValueError: `config.json` is missing or damaged.
    """
    fields = _read_required(path, "config.json")
    config = recipes.defaults()
    for name, value in fields.items():
        *groups, last = name.split(".")
        group = config
        for part in groups:
            group = group.setdefault(part, {})
        group[last] = _with_tuples(value)
    return ConfigDict(config)


def read_model(path: str | os.PathLike) -> dict[str, Any]:
    """Reads what a run needs to build its model without its data and without the file of
    `config.weights`.

    Args:
        path: the workdir of the run, local or remote.

    Returns: A dict with `inputs`, from `InputPipeline.describe`, and `weights`, the
        `facts_of_weights` of the task.

    Raises:
        ValueError: `model.json` is missing or damaged.
    """
    content = _read_required(path, "model.json")
    return {**content, "weights": _with_tuples(content["weights"])}


def _read_required(workdir, name):
    """Returns the content of a JSON file that a workdir must contain."""
    file = files.as_path(workdir) / name
    content = files.read_json(file)
    if content is None:
        raise ValueError(f"The workdir of a run must contain `{name}`. Received: {file}")
    return content


def _with_tuples(value):
    """Returns a value with tuples instead of the lists of JSON."""
    if isinstance(value, dict):
        return {name: _with_tuples(item) for name, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
