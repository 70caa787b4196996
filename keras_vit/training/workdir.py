"""The folder of one run: its config, its checkpoints and its results."""

import contextlib
import fcntl
import json
import math
import os
import platform
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
from ml_collections import ConfigDict

from keras_vit import files
from keras_vit.training.checkpoint_manager import finished_steps
from keras_vit.training.hosts import is_chief

# Fields of a config that may differ from one start of a run to the next: where and how it is computed and logged. They
# change no number but by rounding, except that on TensorFlow dropout masks follow the replica.
FREE_FIELDS = (
    "recipe", "strategy", "shard", "tpu_address", "steps_per_call", "checkpoint_every_steps", "log_every_steps",
    "profile", "data.path", "data.prefetch", "data.threads",
)  # fmt: skip


class Workdir:
    """A folder that belongs to one config.

    Creating one reads, and writes nothing; `claim` writes the config, once it is known that the run can start.

    Args:
        path: the folder, local or remote ("gs://bucket/run"). All hosts of a run share it, and the chief writes.
        config: nested dict of plain values, the recipe of the run.
        change: whether a run that is not done continues with another config. The `FREE_FIELDS` may always differ.

    Attributes:
        path, checkpoints, export, tensorboard: the folder and folders in it, which `/` extends.
        is_chief: whether this process writes: of several hosts the first one.

    Raises:
        ValueError: the folder belongs to a run with another config, or a file in it is damaged.
    """

    def __init__(self, path: str | os.PathLike, config: Mapping[str, Any], change: bool = False) -> None:
        self.path = files.as_path(path)
        self.checkpoints = self.path / "checkpoints"
        self.export = self.path / "export"
        self.tensorboard = self.path / "tensorboard"
        self.is_chief = is_chief()  # until an engine knows better
        self._locks = 0
        self._config = json.loads(json.dumps(_flat(config)))  # as it will be read back: a tuple becomes a list
        self._changes = self._compare(change)

    def results(self) -> dict[str, Any] | None:
        """The results of the run if it is done, else None; numbers that are not finite are NaN."""
        results = self._read_json("results.json")
        return results and {name: math.nan if value is None else value for name, value in results.items()}

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Writes the results, a flat dict of numbers; the run is done."""
        self._write_json("results.json", dict(results))

    def claim(self) -> None:
        """Writes the config and the command; `changes.json` gets an entry if the config is another than before.

        Raises:
            ValueError: the folder cannot be written, or a file in it is damaged.
        """
        with self._usable():
            files.make_dirs(self.path)
            if self._changes:
                entry = {"step": max(finished_steps(self.checkpoints), default=0), "changes": self._changes}
                self._write_json("changes.json", [*(self._read_json("changes.json") or []), entry])
            self._write_json("config.json", self._config)
            if self.results() is None:
                self._write_json("command.json", _command(self._config))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """While it is open, no other run can use the folder; it may be opened again inside itself.

        Raises:
            ValueError: another run is at work in it, or it cannot be written.
        """
        with contextlib.ExitStack() as stack:
            if not self._locks and self.is_chief:
                with self._usable():
                    files.make_dirs(self.path)
                    stack.enter_context(workdir_lock(self.path))
                    if not files.is_remote(self.path):  # files of a killed process
                        files.remove_leftovers(self.path, 0)
                        for folder in self.export.glob("partial-????????"):
                            files.remove_tree(folder)
            self._locks += 1
            try:
                yield
            finally:
                self._locks -= 1

    def _compare(self, change):
        """What differs from the config of the run so far: `{name: [before, now]}`."""
        existing = self._read_json("config.json")
        if existing is None:
            return {}
        names = sorted(n for n in self._config.keys() | existing.keys() if self._config.get(n) != existing.get(n))
        changes = {name: [existing.get(name), self._config.get(name)] for name in names}
        fixed = {name: values for name, values in changes.items() if name not in FREE_FIELDS}
        is_done = self.results() is not None
        if fixed and (not change or is_done):
            difference = ", ".join(f"{name} was {before!r} and is {now!r}" for name, (before, now) in fixed.items())
            change_it = ", or go on from the last checkpoint with the new values by --change"
            advice = ": the run is done" if is_done else change_it
            raise ValueError(
                f"The workdir belongs to a run with another config: {difference}. Choose another workdir{advice}. "
                f"Received: workdir={self.path}"
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
        advice = "It must be a folder that can be written."
        return files.explained_errors("The workdir cannot be used", advice, f"workdir={self.path}")


@contextlib.contextmanager
def workdir_lock(folder):
    """While it is open, no other process can open it for the same folder; a remote folder is not locked."""
    if files.is_remote(folder):
        yield
        return
    with open(files.as_path(folder) / "lock", "a+", encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(
                f"Another run is at work in this workdir: {file.read() or 'an unknown process'}. Wait for its end, "
                f"stop it, or choose another workdir. Received: workdir={folder}"
            ) from None
        except OSError:
            pass  # this file system has no locks
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            # The file stays: a process that has opened it already would lock one that nobody else finds.
            file.truncate(0)


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


def read_config(path: str | os.PathLike) -> ConfigDict:
    """Returns the config of a run.

    Args:
        path: the workdir, local or remote.

    Raises:
        ValueError: the folder has no `config.json`, or it is damaged.
    """
    file = files.as_path(path) / "config.json"
    fields = files.read_json(file)
    if not isinstance(fields, dict):
        raise ValueError(f"The workdir of a run has a file `config.json`. Received: {file}")
    config: dict[str, Any] = {}
    for name, value in fields.items():
        *groups, last = name.split(".")
        group = config
        for part in groups:
            group = group.setdefault(part, {})
        group[last] = tuple(value) if isinstance(value, list) else value
    return ConfigDict(config)


def _flat(config, prefix=""):
    """`{"model": {"classes": 10}}` as `{"model.classes": 10}`."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
