"""The checkpoints of a run: written atomically, and read only if they are intact."""

import re

import keras

from keras_vit import files
from keras_vit.training.state_files import CorruptCheckpointError, corruption

MARKER = "finished"


def finished_steps(folder):
    """Returns the steps of all finished checkpoints in a folder, in order; [] if the folder does not exist."""
    folder = str(folder)
    return [step for step in _step_folders(folder) if files.exists(f"{folder}/{step:09}/{MARKER}")]


class CheckpointManager:
    """A folder of checkpoints, one subfolder per step; one counts once its file `finished`, the last, exists."""

    def __init__(self, folder, engine, write=print):
        self.folder = str(folder)
        self._engine, self._write, self._chief = engine, write, engine.host_index == 0

    def steps(self):
        """Returns the steps of all finished checkpoints, in order."""
        return finished_steps(self.folder)

    def path(self, step):
        """Returns the folder of the checkpoint of a step."""
        return f"{self.folder}/{step:09}"

    def save(self, step, counters):
        """Saves the engine's state; keeps the two newest checkpoints and the one with the best evaluation."""
        with self._explained_errors(step):
            if self._chief:
                self._remove(step)
                files.make_dirs(self.path(step))
            self._engine.save(f"{self.path(step)}/state")
        self.update(step, counters)

    def update(self, step, counters):
        """Writes the counters of a checkpoint whose state is saved, and removes old checkpoints."""
        if not self._chief:
            return
        with self._explained_errors(step):
            content = {**counters, "step": step, "backend": keras.backend.backend()}
            files.write_json(f"{self.path(step)}/{MARKER}", content)
            finished = self.steps()
            kept = {*[number for number in finished if number <= step][-2:], counters["best_step"]} & {*finished}
            for number in _step_folders(self.folder):  # including unfinished ones
                if number <= step and number not in kept:
                    self._remove(number)

    def restore(self):
        """Restores the newest intact checkpoint, chosen by process 0 for all hosts; returns its counters."""
        advice = "Nothing was changed; repeat the same command."
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
                self._write(f"the checkpoint {self.path(step)} is corrupt and skipped: {error}")
        if steps:
            raise ValueError(
                "All checkpoints of this run are corrupt. Delete them to train from scratch, or choose another "
                f"workdir. Received: {self.folder}"
            )
        return {}

    def _restore(self, step):
        """Restores the engine's state from a checkpoint; returns its counters."""
        path = self.path(step)
        with corruption():
            counters = files.read_json(f"{path}/{MARKER}")
        if not isinstance(counters, dict) or counters.get("step") != step:
            raise CorruptCheckpointError(f"its file `{MARKER}` does not hold the counters of step {step}")
        self._engine.restore(f"{path}/state")
        backend, written_on = keras.backend.backend(), counters.pop("backend", "")
        note = f", written on {written_on}: results on {backend} are equal up to rounding"
        self._write(f"resuming from step {step}, {path}{'' if written_on in ('', backend) else note}")
        return counters

    def _explained_errors(self, step):
        advice = "Earlier ones are intact. Free disk space if the disk is full, and repeat the same command."
        return files.explained_errors("A checkpoint cannot be written", advice, self.path(step))

    def _remove(self, step):
        path = self.path(step)
        if files.exists(f"{path}/{MARKER}"):
            files.remove(f"{path}/{MARKER}")  # first, so that it never marks an incomplete checkpoint
        if files.is_dir(path):
            files.remove_tree(path)


def _step_folders(folder):
    """Returns the steps, in order, that the subfolders of a folder are named after."""
    if not files.is_dir(folder):
        return []
    return sorted(int(name) for name in files.list_dir(folder) if re.fullmatch(r"\d{9,}", name))
