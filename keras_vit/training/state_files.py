"""The files of a checkpoint that any backend reads: named arrays, in as many .npz files as there are hosts.

A file `state-00001-of-00002.npz` has what host 1 of 2 wrote: `weights/3/head/kernel` is a whole array, and
`weights/3/head/kernel@384,0` the part of it that begins at row 384 and column 0. `weights`, `statistics` (what layers
write in the forward pass), `slots` (of the optimizer) and `averages` are in the order of the variables; `scaling` is
the loss scale and the finite steps since it was changed.
"""

import contextlib
import re
import tempfile
import zipfile
import zlib

import numpy as np

from keras_vit import files
from keras_vit.checkpoints.npz import NpzFile
from keras_vit.training.engine import CorruptCheckpointError


def state_names(model, optimizer, averaged, scaled):
    """The names of the arrays of a training state: `{group: [name]}`, each list in the order of the variables."""

    def numbered(group, variables):
        return [f"{group}/{i}/{variable.path}" for i, variable in enumerate(variables)]

    return {
        "weights": numbered("weights", model.trainable_variables),
        "statistics": numbered("statistics", model.non_trainable_variables),
        "slots": numbered("slots", optimizer.variables),
        "averages": numbered("averages", model.trainable_variables) if averaged else [],
        "scaling": ["scaling/0/loss_scale", "scaling/1/good_steps"] if scaled else [],
    }


def write_state(path, pieces, host_index=0, num_hosts=1):
    """Writes what one host has of a state.

    Args:
        path: what the names of the files begin with; their folder exists.
        pieces: an iterable of `(name, start, array)`: numpy arrays, and where each begins in the array of this name, a
            tuple of integers, or None for the whole array.
        host_index, num_hosts: which host this is, and of how many.

    Raises:
        OSError: the file cannot be written.
    """
    with (
        files.atomic_write(_file_name(path, host_index, num_hosts), "wb") as file,
        zipfile.ZipFile(file, "w", allowZip64=True) as archive,
    ):
        members = []
        for name, start, array in pieces:
            member = name if start is None else f"{name}@{','.join(map(str, start))}"
            with archive.open(f"{member}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
            members.append(member)
        # A bit of the archive's directory may hide some of its members.
        archive.comment = _digest(members).encode()


def has_state(path):
    """Whether `write_state` wrote files whose names begin with `path`."""
    return bool(_existing(path))


class StateReader:
    """Reads what `write_state` wrote, whatever the number of hosts was; a context manager that closes the files.

    Args:
        path: as for `write_state`.

    Raises:
        CorruptCheckpointError: a file is damaged.
        OSError: one cannot be read; a `FileNotFoundError` where it is missing.
    """

    def __init__(self, path):
        existing = _existing(path)
        number = max((hosts for _, _, hosts in existing), default=1)
        expected = [_file_name(path, host, number) for host in range(number)]
        missing = sorted(set(expected) - {name for name, _, _ in existing})
        if missing:
            raise FileNotFoundError(f"{missing[0]} is missing")
        self._pieces, self._last = {}, (None, None)
        with contextlib.ExitStack() as stack:
            for name in expected:
                file = _open(_local(name, stack), stack)
                if file.comment not in ("", _digest(file.arrays)):  # older files have none
                    raise CorruptCheckpointError(f"it does not have the arrays that were written. Received: {name}")
                for member, array in file.arrays.items():
                    whole, _, start = member.rpartition("@")
                    if not re.fullmatch(r"\d+(,\d+)*", start):
                        whole, start = member, ""
                    start = tuple(map(int, start.split(","))) if start else (0,) * len(array.shape)
                    self._pieces.setdefault(whole, []).append((start, array))
            self._stack = stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def has(self, name):
        """Whether there is an array of this name, or a part of it."""
        return name in self._pieces

    def check(self, name, shape):
        """Raises a `ValueError` unless the files have the whole of an array of this name and shape."""
        pieces = self._pieces.get(name, [])
        covered = sum(int(np.prod(array.shape)) for _, array in pieces)
        ends = [tuple(np.add(start, array.shape)) for start, array in pieces]
        inside = all(len(end) == len(shape) and all(e <= s for e, s in zip(end, shape)) for end in ends)
        if not pieces or not inside or covered != int(np.prod(shape)):
            raise ValueError(
                f"The checkpoint is of another model: it must have {name!r} of shape {tuple(shape)}. "
                f"Received: {[array.shape for _, array in pieces]}"
            )

    def read(self, name, shape, index=()):
        """A part of an array, which `check` found in the files.

        Args:
            name: of the array.
            shape: of the whole array.
            index: a tuple of slices of step 1; () for the whole array.

        Returns:
            A numpy array; bfloat16 and float16 as float32.

        Raises:
            CorruptCheckpointError: the array is damaged.
        """
        index = [s.indices(n)[:2] for s, n in zip(index or (slice(None),) * len(shape), shape)]
        result = None
        for start, array in self._pieces[name]:
            low = [max(a, s) for (a, _), s in zip(index, start)]
            high = [min(b, s + n) for (_, b), s, n in zip(index, start, array.shape)]
            if any(a >= b for a, b in zip(low, high)):
                continue
            part = self._read_piece(name, start, array)
            part = part[tuple(slice(a - s, b - s) for a, b, s in zip(low, high, start))]
            if result is None:
                result = np.empty([b - a for a, b in index], part.dtype)
            result[tuple(slice(a - first, b - first) for a, b, (first, _) in zip(low, high, index))] = part
        return result

    def _read_piece(self, name, start, array):
        # Kept, since several devices may ask for parts of it, one after the other.
        if self._last[0] != (name, start):
            with _corruption():
                self._last = (name, start), array.read()
        return self._last[1]


def _digest(members):
    """What tells files of other members apart."""
    return f"crc32 of names {zlib.crc32('/'.join(members).encode()):08x}"


def _file_name(path, host_index, num_hosts):
    return f"{path}-{host_index:05}-of-{num_hosts:05}.npz"


def _existing(path):
    """`(file, host, hosts)` of the files whose names begin with `path`."""
    folder, _, stem = str(path).rpartition("/")
    if not files.is_dir(folder):
        return []
    matches = [re.fullmatch(re.escape(stem) + r"-(\d{5})-of-(\d{5})\.npz", name) for name in files.list_dir(folder)]
    return [(f"{folder}/{match[0]}", int(match[1]), int(match[2])) for match in matches if match]


def _open(path, stack):
    """An `NpzFile`, open until the stack is closed."""
    open(path, "rb").close()  # an OSError is no damage
    with _corruption():
        return stack.enter_context(NpzFile(path))


@contextlib.contextmanager
def _corruption():
    try:
        yield
    except ValueError as error:
        raise CorruptCheckpointError(str(error)) from error


def _local(path, stack):
    """A path on this machine of a file that may be remote; a copy is there until the stack is closed."""
    if not files.is_remote(path):
        return path
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    files.copy(path, f"{folder}/state.npz")
    return f"{folder}/state.npz"
