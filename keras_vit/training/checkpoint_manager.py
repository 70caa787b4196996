"""The checkpoints of a run: written whole or not at all, and read only if they are sound."""

import re
import tempfile

import keras

from keras_vit import files
from keras_vit.training.state_files import CorruptCheckpointError

MARKER = "finished"


def finished_steps(folder):
    """The steps of all finished checkpoints in a folder, in order; none if there is no folder."""
    folder = str(folder)
    return [step for step in _step_folders(folder) if files.exists(f"{folder}/{step:09}/{MARKER}", strict=True)]


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
        self._engine, self._write, self._chief = engine, write, chief

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
        path = self.path(step)
        try:
            if not self._chief:
                self._save_part(path)
                return
            self._remove(step)
            files.make_dirs(path)
            self._engine.save(f"{path}/state")
            self._write_marker(step, counters)
        except ValueError as error:
            if self._chief:
                self._remove(step)
            message = f"{error}. Nothing was saved. {self._newest_sentence()}. Received: step={step}"
            raise type(error)(message) from error
        except OSError as error:
            if self._chief:
                self._remove(step)
            raise ValueError(
                f"The checkpoint cannot be written ({_first_line(error)}). {self._newest_sentence()}: make room if the "
                f"disk is full, and repeat the same command. Received: {path}"
            ) from error
        self._prune(step, counters["best_step"])

    def _save_part(self, path):
        if self._engine.saves_on_every_host:
            self._engine.save(f"{path}/state")
        else:  # some variables are read by all hosts together
            with tempfile.TemporaryDirectory() as discarded:
                self._engine.save(f"{discarded}/state")

    def update(self, step, counters):
        """Gives the checkpoint of a step, which was saved before, other counters; arguments and errors as `save`."""
        if not self._chief:
            return
        try:
            self._write_marker(step, counters)
        except OSError as error:
            raise ValueError(
                f"The checkpoint cannot be written ({_first_line(error)}) and is as it was: make room if the disk is "
                f"full, and repeat the same command. Received: {self.path(step)}"
            ) from error
        self._prune(step, counters["best_step"])

    def restore(self):
        """Restores the newest checkpoint that is sound, on all hosts the one that the chief chooses.

        A damaged one is named and left where it is, until a later checkpoint replaces it. A failure to read ends the
        run: an error of the network is not damage.
        """
        counters, error = {}, None
        if self._chief:
            try:
                counters = self._restore_newest()
            except ValueError as reason:
                error = reason
        # All values count from 1; 0 is a failure.
        (chosen,), *_ = self._engine.gather_hosts([0 if error else 1 + counters.get("step", 0)])
        if not self._chief and chosen > 1:
            try:
                counters, _ = self._restore(chosen - 1)
            except ValueError as reason:
                error = reason
        step = 0 if error else 1 + counters.get("step", 0)
        hosts = self._engine.gather_hosts([step, self._engine.weights_checksum() if step else 0])
        if error:
            raise error
        if len(set(hosts)) > 1:
            steps = ", ".join(f"host {i} {step - 1 if step else 'failed'}" for i, (step, _) in enumerate(hosts))
            raise ValueError(
                "The hosts did not restore the same step and weights. All of them must see the same workdir and start "
                f"from the same `weights`. Received: {steps}, of {self.folder}"
            )
        return counters

    def _restore_newest(self):
        try:
            steps = self.steps()
        except OSError as error:
            raise _unreadable(error, self.folder) from error
        for step in reversed(steps):
            try:
                counters, written_on = self._restore(step)
            except CorruptCheckpointError as error:
                self._write(f"the checkpoint {self.path(step)} is corrupt and not used: {error}")
                continue
            self._write(f"going on from step {step}, {self.path(step)}{_backend_note(written_on)}")
            return counters
        if steps:
            raise ValueError(
                "No checkpoint of this run can be read. Delete them to train from the start, or choose another "
                f"workdir. Received: {self.folder}"
            )
        return {}

    def _restore(self, step):
        """`(counters, backend that wrote it)` of a checkpoint, whose state the engine has then."""
        path = self.path(step)
        try:
            counters = _counters(files.read_text(f"{path}/{MARKER}"), step)
            self._engine.restore(f"{path}/state")
        except FileNotFoundError as error:
            raise CorruptCheckpointError(f"a file is missing: {_first_line(error)}") from error
        except UnicodeDecodeError as error:
            raise CorruptCheckpointError(f"its file `{MARKER}` is not UTF-8: {error}") from error
        except OSError as error:
            raise _unreadable(error, path) from error
        return counters, counters.pop("backend", "")

    def _write_marker(self, step, counters):
        content = {**counters, "step": step, "backend": keras.backend.backend()}
        files.write_json(f"{self.path(step)}/{MARKER}", content)

    def _newest_sentence(self):
        path = self.newest_path()
        return "There is no checkpoint yet" if path is None else f"The last one, {path}, is as it was"

    def _prune(self, newest, best):
        """Removes older checkpoints that are not kept, and unfinished ones."""
        try:
            finished = self.steps()
            keep = {*[step for step in finished if step <= newest][-2:], best} & {*finished}
            for step in _step_folders(self.folder):
                if step <= newest and step not in keep:
                    self._remove(step)
        except OSError as error:  # the new one is whole; the next save tries again
            self._write(f"old checkpoints could not be removed: {_first_line(error)}")

    def _remove(self, step):
        path = self.path(step)
        if files.exists(f"{path}/{MARKER}"):
            files.remove(f"{path}/{MARKER}")  # first, so that it never marks half a checkpoint
        if files.is_dir(path):
            files.remove_tree(path)


def _counters(text, step):
    try:
        counters = files.parse_json(text)
    except ValueError as error:
        raise CorruptCheckpointError(f"its file `{MARKER}` is not JSON: {error}") from error
    if not isinstance(counters, dict) or type(counters.get("step")) is not int or counters["step"] != step:
        raise CorruptCheckpointError(f"its file `{MARKER}` does not have the counters of step {step}")
    return counters


def _backend_note(written_on):
    backend = keras.backend.backend()
    if written_on in ("", backend):
        return ""
    return f", written on {written_on}: on {backend} the numbers are the same within rounding, and dropout draws others"


def _step_folders(folder):
    """The steps, in order, that folders in a folder are named by."""
    if not files.is_dir(folder):
        return []
    return sorted(int(name) for name in files.list_dir(folder) if re.fullmatch(r"\d{9,}", name))


def _unreadable(error, path):
    return ValueError(
        f"A checkpoint cannot be read ({_first_line(error)}). Nothing was changed: repeat the same command once it "
        f"can. Received: {path}"
    )


def _first_line(error):
    return str(error).split("\n")[0][:200]
