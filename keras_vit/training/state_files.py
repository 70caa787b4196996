"""Reads and writes the .npz files of a checkpoint.

The JAX engine writes one file per host. The TensorFlow engine writes a single file. Both engines
read both forms.

For example, the second of two hosts writes `state-00001-of-00002.npz`. In this file, an array named
`weights/3/head/kernel` is complete. An array named `weights/3/head/kernel@384,0` is a piece whose
first element is in row 384, column 0. Each name begins with a field of `update.TrainState`.
"""

import collections
import contextlib
import math
import os
import re
import tempfile
import zipfile

import numpy as np

from keras_vit import files
from keras_vit.checkpoints.readers import NpzFile
from keras_vit.training.diagnosis import Diverged


class CorruptCheckpointError(ValueError):
    """Raised if a checkpoint is damaged or incomplete. Reading the files again would not help."""


def named_arrays(model, optimizer, state):
    """Yields the name and the value of each array of a `TrainState`, in the order of its fields."""
    variables = {
        "weights": model.trainable_variables,
        "statistics": model.non_trainable_variables,
        "slots": optimizer.variables,
        "averages": model.trainable_variables,
    }
    for field, arrays in vars(state).items():
        paths = ["loss_scale", "good_steps"]
        if field in variables:
            paths = [variable.path for variable in variables[field]]
        for i, (path, array) in enumerate(zip(paths, arrays)):
            yield f"{field}/{i}/{path}", array


def write_state(path, pieces, host_index=0, num_hosts=1):
    """Writes the `(name, start, array)` pieces of one host; `start` is None for a whole array."""
    target = _file_name(path, host_index, num_hosts)
    if files.is_remote(target):
        with tempfile.TemporaryDirectory() as folder:
            write_state(f"{folder}/state", pieces)
            files.copy(_file_name(f"{folder}/state", 0, 1), target)
        return
    with (
        files.atomic_write(target, "wb") as file,
        zipfile.ZipFile(file, "w", allowZip64=True) as archive,
    ):
        for name, start, array in pieces:
            check_finite(name, array)
            member = name if start is None else f"{name}@{','.join(map(str, start))}"
            with archive.open(f"{member}.npy", "w", force_zip64=True) as stream:
                array = np.asarray(array, order="C")
                np.lib.format.write_array(stream, array, allow_pickle=False)


def check_finite(name, array):
    """Raises `Diverged` if the array is a weight or a statistic and is not finite."""
    is_weight = name.startswith(("weights/", "statistics/")) and array.dtype.kind == "f"
    if is_weight and not np.isfinite(array).all():
        raise Diverged(
            "The weights are not finite and were not saved. Try a lower learning rate "
            f"(--config.schedule.base). Received: {name}"
        )


class StateReader(contextlib.ExitStack):
    """Context manager that reads the files of `write_state`, written by any number of hosts."""

    def __init__(self, path):
        super().__init__()
        # Collect the pieces of every array: `{key: [(start, LazyArray)]}`.
        self._pieces = collections.defaultdict(list)
        with contextlib.ExitStack() as stack:  # closes the files on an error
            for file in _files_of_hosts(path):
                for member, array in _arrays(file, stack).items():
                    name, start = re.fullmatch(r"(.*?)(?:@([\d,]+))?", member).groups()
                    start = map(int, start.split(",")) if start else [0] * len(array.shape)
                    self._pieces[_key(name)].append((tuple(start), array))
            self.enter_context(stack.pop_all())

    def check(self, name, shape):
        """Returns whether the files contain this array.

        Raises a `ValueError` if its shape differs, or if it is missing but needed. Arrays of
        `scaling` and the states of seed generators, which training does not use, may be missing.
        """
        pieces = self._pieces[_key(name)]
        if not pieces and (name.startswith("scaling/") or name.endswith("/seed_generator_state")):
            return False
        shapes = [array.shape for _, array in pieces]
        is_inside = all(
            len(array.shape) == len(shape) and np.all(np.add(start, array.shape) <= shape)
            for start, array in pieces
        )
        if not pieces or not is_inside or sum(map(math.prod, shapes)) != math.prod(shape):
            raise ValueError(
                "The checkpoint must match the model, the optimizer and `ema_decay`: it needs "
                f"{name!r} of shape {tuple(shape)}. Received: {shapes}"
            )
        return True

    def read(self, name, shape, index=()):
        """Returns a part of an array; converts 16-bit floats to float32.

        `index` is a tuple of slices, or () for the whole array.
        """
        slices = index or (slice(None),) * len(shape)
        bounds = [part.indices(side)[:2] for part, side in zip(slices, shape)]
        first, end = np.array(bounds, int).reshape(-1, 2).T
        result = None
        for start, array in self._pieces[_key(name)]:
            # Copy the intersection of this piece with the requested part.
            low = np.maximum(first, start)
            high = np.minimum(end, np.add(start, array.shape))
            if np.any(low >= high):
                continue
            with corruption():
                values = array.read()[tuple(map(slice, low - start, high - start))]
            if result is None:
                result = np.empty(end - first, values.dtype)
            result[tuple(map(slice, low - first, high - first))] = values
        return result


def _key(name):
    """Removes number suffixes, which Keras appends to repeated names: `dense_1/kernel` becomes
    `dense/kernel`."""
    *prefix, path = name.split("/", 2)
    return "/".join([*prefix, re.sub(r"_\d+(?=/|$)", "", path)])


def _file_name(path, host_index, num_hosts):
    return f"{path}-{host_index:05}-of-{num_hosts:05}.npz"


def _files_of_hosts(path):
    """Returns the paths of the files of all hosts, which must exist."""
    folder = os.path.dirname(path)
    names = files.list_dir(folder) if files.is_dir(folder) else []
    matches = [re.search(r"-of-(\d{5})\.npz$", name) for name in names]
    num_hosts = max((int(match[1]) for match in matches if match), default=1)
    paths = [_file_name(path, host, num_hosts) for host in range(num_hosts)]
    for file in paths:
        if not files.exists(file):
            raise CorruptCheckpointError(f"a file is missing: {file}")
    return paths


def _arrays(path, stack):
    """Returns the arrays of a file as `{name: LazyArray}`, readable until the stack closes;
    downloads a remote file."""
    if files.is_remote(path):
        local = stack.enter_context(tempfile.TemporaryDirectory()) + "/state.npz"
        files.copy(path, local)
        path = local
    open(path, "rb").close()  # an OSError here does not mean that the file is damaged
    with corruption():
        return stack.enter_context(NpzFile(path)).arrays


@contextlib.contextmanager
def corruption():
    """Converts a `ValueError` to a `CorruptCheckpointError`."""
    try:
        yield
    except ValueError as error:
        raise CorruptCheckpointError(str(error)) from error
