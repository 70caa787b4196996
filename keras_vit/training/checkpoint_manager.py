"""The checkpoints of a run: written whole or not at all, and read only if they are sound."""

import json
import re
import tempfile

import keras

from keras_vit import files

MARKER = "finished"


class CheckpointManager:
    """A folder of checkpoints, one folder for each, named by its step.

    A checkpoint counts once it has a file `finished`, which is written last: neither a rename, which an object store
    does not have, nor the order of the other files matters. That file holds the counters of the run, as JSON.

    Args:
        folder: any path, local or remote, that all hosts see.
        engine: the `Engine` whose state is saved and restored.
        write: takes lines of text.
        chief: whether this process's checkpoints are the ones that stay. Every host must save, at the same step.
    """

    def __init__(self, folder, engine, write=print, chief=True):
        self.folder = str(folder)
        self._engine = engine
        self._write = write
        self._chief = chief

    def steps(self):
        """The steps of all finished checkpoints, in order."""
        return sorted(step for step in self._folders() if files.exists(f"{self.path(step)}/{MARKER}"))

    def path(self, step):
        """The folder of the checkpoint of a step."""
        return f"{self.folder}/{step:09}"

    def save(self, step, counters):
        """Saves the engine's state; keeps the two newest checkpoints and that of the best evaluation.

        Args:
            step: steps that are done.
            counters: plain numbers by name, among them `best_step`, that `restore` gives back.

        Raises:
            ValueError: it cannot be written, or a weight is not finite; the checkpoints before it are still there.
        """
        path = self.path(step)
        if not self._chief:
            self._save_part(path, step)
            return
        try:
            self._remove(step)
            files.make_dirs(path)
            self._save_state(f"{path}/state", step)
            files.write_json(f"{path}/{MARKER}", {**counters, "step": step})
        except ValueError:
            self._remove(step)
            raise
        except OSError as error:
            reason = str(error).split("\n")[0]
            self._remove(step)
            raise ValueError(
                f"The checkpoint cannot be written ({reason}). {self._newest_sentence()}: make room, and repeat the "
                f"same command. Received: {path}"
            ) from error
        self._prune(step, counters["best_step"])

    def restore(self):
        """Restores the newest checkpoint that can be read.

        Returns:
            Its counters, with `step`; an empty dict if there is no checkpoint at all.

        Raises:
            ValueError: there are checkpoints, and none can be read.
        """
        steps = self.steps()
        for step in reversed(steps):
            path = self.path(step)
            try:
                counters = dict(json.loads(files.read_text(f"{path}/{MARKER}")))
                written_on = self._engine.restore(f"{path}/state")
            except (OSError, TypeError, ValueError) as error:
                self._write(f"the checkpoint {path} is corrupt and not used: {error}")
            else:
                self._write(f"going on from step {step}, {path}{_backend_note(written_on)}")
                return counters
        if steps:
            raise ValueError(
                "No checkpoint of this run can be read. Delete them to train from the start, or choose another "
                f"workdir. Received: {self.folder}"
            )
        return {}

    def _save_part(self, path, step):
        """What a host does that is not the chief."""
        if not self._engine.saves_on_every_host:
            # Some variables are read by all workers together.
            with tempfile.TemporaryDirectory() as discarded:
                self._save_state(f"{discarded}/state", step)
            return
        try:
            self._save_state(f"{path}/state", step)
        except OSError as error:
            raise ValueError(
                f"This host's part of the checkpoint cannot be written ({error}). Received: {path}"
            ) from error

    def _save_state(self, path, step):
        try:
            self._engine.save(path)
        except ValueError as error:
            raise ValueError(f"{error}. Nothing was saved. {self._newest_sentence()}. Received: step={step}") from error

    def newest_path(self):
        """The path of the newest finished checkpoint, or None."""
        last = max(self.steps(), default=None)
        return None if last is None else self.path(last)

    def _newest_sentence(self):
        path = self.newest_path()
        return "There is no checkpoint yet" if path is None else f"The last one, {path}, is as it was"

    def _folders(self):
        if not files.is_dir(self.folder):
            return []
        return [int(name) for name in files.list_dir(self.folder) if re.fullmatch(r"\d{9,}", name)]

    def _prune(self, newest, best):
        """Removes what is not kept: older ones, unfinished ones, and those of a run that came further and could not be
        restored."""
        finished = [step for step in self.steps() if step <= newest]
        keep = {*finished[-2:], best}
        for step in self._folders():
            if step not in keep or step > newest:
                self._remove(step)

    def _remove(self, step):
        path = self.path(step)
        if files.exists(f"{path}/{MARKER}"):
            files.remove(f"{path}/{MARKER}")  # first, so that it never marks half a checkpoint
        if files.is_dir(path):
            files.remove_tree(path)


def _backend_note(written_on):
    """What the log says of a checkpoint that another backend wrote."""
    backend = keras.backend.backend()
    if written_on == backend:
        return ""
    return f", written on {written_on}: on {backend} the numbers are the same within rounding, and dropout draws others"
