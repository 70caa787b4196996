"""The checkpoints of a run: written whole or not at all, and read only where they are sound."""

import json
import re
import tempfile

import tensorflow as tf

FINISHED = "finished"


class Checkpoints:
    """A folder of checkpoints, one folder for each, named by its step.

    A checkpoint counts once it has a file `finished`, which is written last: neither a rename, which an object store
    does not have, nor an order of the other files matters.

    Args:
        folder: any path of `tf.io.gfile`, that all workers see.
        state: the `State` that is saved and restored.
        write: takes lines of text.
        chief: whether this process's checkpoints are the ones that stay. Every worker must save, at the same step.
    """

    def __init__(self, folder, state, write=print, chief=True):
        self.folder = str(folder)
        self._state = state
        self._write = write
        self._chief = chief

    def steps(self):
        """The steps of all finished checkpoints, in order."""
        return sorted(step for step in self._folders() if tf.io.gfile.exists(f"{self.path(step)}/{FINISHED}"))

    def path(self, step):
        """The folder of the checkpoint of a step."""
        return f"{self.folder}/{step:09}"

    def save(self, step):
        """Saves the state; keeps the two newest checkpoints and that of the best evaluation.

        Raises:
            ValueError: it could not be written, or a weight is no finite number; what was there before is still there.
        """
        if not self._state.all_finite():
            raise ValueError(
                f"The weights are no finite numbers any more, and are not saved; a lower `schedule.base` may help. "
                f"{self._kept()}. Received: step={step}"
            )
        if not self._chief:
            # Some variables are only read when all workers take part.
            with tempfile.TemporaryDirectory() as nowhere:
                self._state.write(f"{nowhere}/state")
            return
        path = self.path(step)
        try:
            self._remove(step)
            tf.io.gfile.makedirs(path)
            self._state.write(f"{path}/state")
            with tf.io.gfile.GFile(f"{path}/{FINISHED}", "w") as file:
                file.write(json.dumps({"step": step}) + "\n")
        except (tf.errors.OpError, OSError) as error:
            reason = str(getattr(error, "message", error)).split("\n")[0]
            self._remove(step)
            raise ValueError(
                f"The checkpoint cannot be written ({reason}). {self._kept()}: make room, and give the same command "
                f"again. Received: {path}"
            ) from error
        self._prune(step)

    def restore(self):
        """Restores the newest checkpoint that can be read; returns its step, 0 where there is none at all.

        Raises:
            ValueError: there are checkpoints, and none can be read.
        """
        steps = self.steps()
        for step in reversed(steps):
            path = self.path(step)
            try:
                self._state.read(f"{path}/state").assert_existing_objects_matched()
            except (tf.errors.OpError, AssertionError, LookupError, RuntimeError, ValueError) as error:
                reason = str(getattr(error, "message", error)).split("\n")[0][:200]
                self._write(f"the checkpoint {path} is corrupt and not used: {reason}")
            else:
                self._write(f"going on from step {step}, {path}")
                return step
        if steps:
            raise ValueError(
                "No checkpoint of this run can be read. Delete them to train from the start, or take another workdir. "
                f"Received: {self.folder}"
            )
        return 0

    def _kept(self):
        last = max(self.steps(), default=None)
        return "There is no checkpoint yet" if last is None else f"The last one, {self.path(last)}, is as it was"

    def _folders(self):
        if not tf.io.gfile.isdir(self.folder):
            return []
        names = [name.rstrip("/") for name in tf.io.gfile.listdir(self.folder)]
        return [int(name) for name in names if re.fullmatch(r"\d{9,}", name)]

    def _prune(self, newest):
        """Removes what is not kept: what is older, what was never finished, and what a run left that came further and
        cannot be read any more."""
        usable = [step for step in self.steps() if step <= newest]
        keep = {*usable[-2:], int(self._state.best_step.numpy())}
        for step in self._folders():
            if step not in keep or step > newest:
                self._remove(step)

    def _remove(self, step):
        path = self.path(step)
        if tf.io.gfile.exists(f"{path}/{FINISHED}"):
            tf.io.gfile.remove(f"{path}/{FINISHED}")  # first, so that it never marks half a checkpoint
        if tf.io.gfile.isdir(path):
            tf.io.gfile.rmtree(path)
