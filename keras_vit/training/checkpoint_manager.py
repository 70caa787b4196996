"""The checkpoints of a run: written whole or not at all, and read only if they are sound."""

import re

import keras

from keras_vit import files
from keras_vit.training.state_files import CorruptCheckpointError

MARKER = "finished"


def finished_steps(folder):
    """The steps of all finished checkpoints in a folder, in order; none if there is no folder."""
    folder = str(folder)
    return [step for step in _step_folders(folder) if files.exists(f"{folder}/{step:09}/{MARKER}", strict=True)]


class CheckpointManager:
    """A folder of checkpoints, one folder for each step; one counts once its file `finished` is written, last."""

    def __init__(self, folder, engine, write=print):
        self.folder = str(folder)
        self._engine, self._write, self._chief = engine, write, engine.host_index == 0

    def steps(self):
        """The steps of all finished checkpoints, in order."""
        return finished_steps(self.folder)

    def path(self, step):
        """The folder of the checkpoint of a step."""
        return f"{self.folder}/{step:09}"

    def newest_path(self):
        """The path of the newest finished checkpoint, or None."""
        last = max(self.steps(), default=None)
        return None if last is None else self.path(last)

    def save(self, step, counters):
        """Saves the engine's state; keeps the two newest checkpoints and that of the best evaluation."""
        with self._explained_errors(step):
            if self._chief:
                self._remove(step)
                files.make_dirs(self.path(step))
            self._engine.save(f"{self.path(step)}/state")
        self.update(step, counters)

    def update(self, step, counters):
        """Writes the counters of a checkpoint whose state is saved, and removes checkpoints that are not kept."""
        if not self._chief:
            return
        with self._explained_errors(step):
            content = {**counters, "step": step, "backend": keras.backend.backend()}
            files.write_json(f"{self.path(step)}/{MARKER}", content)
            finished = self.steps()
            kept = {*[number for number in finished if number <= step][-2:], counters["best_step"]} & {*finished}
            for number in _step_folders(self.folder):  # unfinished ones too
                if number <= step and number not in kept:
                    self._remove(number)

    def restore(self):
        """Restores the newest sound checkpoint, on all hosts the one that the chief chooses; returns its counters."""
        advice = "Nothing was changed: repeat the same command."
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
                self._write(f"the checkpoint {self.path(step)} is corrupt and not used: {error}")
        if steps:
            raise ValueError(
                "No checkpoint of this run can be read. Delete them to train from the start, or choose another "
                f"workdir. Received: {self.folder}"
            )
        return {}

    def _restore(self, step):
        """The counters of a checkpoint, whose state the engine has then."""
        path = self.path(step)
        try:
            counters = files.read_json(f"{path}/{MARKER}")
        except ValueError as error:
            raise CorruptCheckpointError(str(error)) from error
        if not isinstance(counters, dict) or counters.get("step") != step:
            raise CorruptCheckpointError(f"its file `{MARKER}` does not have the counters of step {step}")
        self._engine.restore(f"{path}/state")
        backend, written_on = keras.backend.backend(), counters.pop("backend", "")
        note = f", written on {written_on}: on {backend} the numbers are the same within rounding"
        self._write(f"going on from step {step}, {path}{'' if written_on in ('', backend) else note}")
        return counters

    def _explained_errors(self, step):
        advice = "Earlier ones are as they were: make room if the disk is full, and repeat the same command."
        return files.explained_errors("A checkpoint cannot be written", advice, self.path(step))

    def _remove(self, step):
        path = self.path(step)
        if files.exists(f"{path}/{MARKER}"):
            files.remove(f"{path}/{MARKER}")  # first, so that it never marks half a checkpoint
        if files.is_dir(path):
            files.remove_tree(path)


def _step_folders(folder):
    """The steps, in order, that folders in a folder are named by."""
    if not files.is_dir(folder):
        return []
    return sorted(int(name) for name in files.list_dir(folder) if re.fullmatch(r"\d{9,}", name))
