"""Saves and restores the checkpoints of a run. Incomplete and damaged checkpoints are never
restored."""

import re

import keras

from keras_vit import files
from keras_vit.training.state_files import CorruptCheckpointError, corruption

MARKER = "finished"
DISK_ADVICE = "Free disk space if the disk is full, and run the same command again."


def finished_steps(folder):
    """Returns the sorted steps of all finished checkpoints in a folder; [] if the folder does not
    exist."""
    folder = str(folder)
    return [step for step in _step_folders(folder) if files.exists(f"{folder}/{step:09}/{MARKER}")]


class CheckpointManager:
    """Manages a folder of checkpoints, one subfolder per step; the file `finished` marks a complete
    checkpoint."""

    def __init__(self, folder, engine, write=print):
        self.folder = str(folder)
        self._engine = engine
        self._write = write
        self._chief = engine.host_index == 0

    def steps(self):
        return finished_steps(self.folder)

    def path(self, step):
        return f"{self.folder}/{step:09}"

    def save(self, step, counters):
        """Saves the engine's state, and removes earlier checkpoints except the previous one and the
        best one."""
        with self._explained_errors(step):
            if self._chief:
                self._remove(step)
                files.make_dirs(self.path(step))
            self._engine.save(f"{self.path(step)}/state")
        self.update(step, counters)

    def update(self, step, counters):
        """Writes the counters of a checkpoint whose state is already saved, and removes old
        checkpoints."""
        if not self._chief:
            return
        with self._explained_errors(step):
            content = {**counters, "step": step, "backend": keras.backend.backend()}
            files.write_json(f"{self.path(step)}/{MARKER}", content)
            newest = [number for number in self.steps() if number <= step][-2:]
            kept = {*newest, counters["best_step"]}
            for number in _step_folders(self.folder):  # including unfinished checkpoints
                if number <= step and number not in kept:
                    self._remove(number)

    def load(self, step):
        """Restores the engine's state from the checkpoint of a step."""
        advice = "Set --config.export_model=last --change to use the last model."
        with files.explained_errors("A checkpoint cannot be read", advice, self.path(step)):
            self._engine.restore(f"{self.path(step)}/state")

    def restore(self):
        """Restores the newest intact checkpoint, which process 0 chooses, and returns its counters.

        Returns {} if there are no checkpoints. Raises a `ValueError` if all are corrupt.
        """
        advice = "Nothing was changed; run the same command again."
        with files.explained_errors("A checkpoint cannot be read", advice, self.folder):
            counters = self._restore_newest() if self._chief else {}
            (step,), *_ = self._engine.gather_hosts([counters.get("step", 0)])
            return self._restore(step) if step and not self._chief else counters

    def _restore_newest(self):
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self._restore(step)
            except CorruptCheckpointError as error:
                self._write(f"skipping the corrupt checkpoint {self.path(step)}: {error}")
        if steps:
            raise ValueError(
                "All checkpoints of this run are corrupt. Delete them to train from scratch, or "
                f"choose another workdir. Received: {self.folder}"
            )
        return {}

    def _restore(self, step):
        """Restores the engine's state from the checkpoint of a step and returns its counters."""
        path = self.path(step)
        with corruption():
            counters = files.read_json(f"{path}/{MARKER}")
        if not isinstance(counters, dict) or counters.get("step") != step:
            raise CorruptCheckpointError(
                f"its file `{MARKER}` does not contain the counters of step {step}"
            )
        self._engine.restore(f"{path}/state")
        backend = keras.backend.backend()
        written_on = counters.pop("backend", backend)
        note = ""
        if written_on != backend:
            note = f", written on {written_on}: on {backend}, rounding and dropout masks differ"
        self._write(f"resuming from step {step}, {path}{note}")
        return counters

    def _explained_errors(self, step):
        advice = f"Earlier checkpoints are intact. {DISK_ADVICE}"
        return files.explained_errors("A checkpoint cannot be written", advice, self.path(step))

    def _remove(self, step):
        path = self.path(step)
        if files.exists(f"{path}/{MARKER}"):
            # Remove the marker first, so that it never exists for an incomplete checkpoint.
            files.remove(f"{path}/{MARKER}")
        if files.is_dir(path):
            files.remove_tree(path)


def _step_folders(folder):
    """Returns the sorted steps of all checkpoint subfolders, finished or not."""
    if not files.is_dir(folder):
        return []
    return sorted(int(name) for name in files.list_dir(folder) if re.fullmatch(r"\d{9,}", name))
