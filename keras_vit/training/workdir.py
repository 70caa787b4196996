"""The folder of one run: its config, its checkpoints and its results."""

import json
import os
from pathlib import Path


class Workdir:
    """A folder that belongs to one config.

    Args:
        path: the folder; made if it is not there.
        config: nested dict of plain values, what the run is asked to do.

    Raises:
        ValueError: the folder cannot be written, or belongs to a run with another config.
    """

    def __init__(self, path, config):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.export = self.path / "export"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._claim(_flat(config))
        except OSError as error:
            raise ValueError(
                f"The workdir must be a folder that can be written ({error.strerror}). Received: workdir={path}"
            ) from error

    def results(self):
        """The results of the run if it is done, else None."""
        file = self.path / "results.json"
        return json.loads(file.read_text()) if file.exists() else None

    def write_results(self, results):
        """Writes the results, a flat dict of numbers; the run is done."""
        self._write_json("results.json", results)

    def _claim(self, config):
        config = json.loads(json.dumps(config))  # as it will be read back: a tuple becomes a list
        file = self.path / "config.json"
        if file.exists():
            theirs = json.loads(file.read_text())
            names = sorted(n for n in config.keys() | theirs.keys() if config.get(n) != theirs.get(n))
            if names:
                difference = ", ".join(f"{n} was {theirs.get(n)!r} and is {config.get(n)!r}" for n in names)
                raise ValueError(
                    f"The workdir belongs to a run with another config: {difference}. Take another workdir. "
                    f"Received: workdir={self.path}"
                )
        self._write_json("config.json", config)

    def _write_json(self, name, content):
        partial = self.path / f"{name}.partial"
        partial.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        os.replace(partial, self.path / name)


def _flat(config, prefix=""):
    """`{"model": {"classes": 10}}` as `{"model.classes": 10}`."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
