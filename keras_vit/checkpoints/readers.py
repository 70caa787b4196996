"""Reads .npz and .safetensors files: headers first, then one array at a time, and never a pickled object."""

import contextlib
import dataclasses
import math
import os
import zipfile
from collections.abc import Callable

import numpy as np

_MAX_HEADER = 10_000_000  # bytes of a .safetensors header; ViT-H/14 has 60,000
_SAFETENSORS_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclasses.dataclass(frozen=True)
class LazyArray:
    """An array in a file: its shape and dtype, from a header, and a function that reads it."""

    shape: tuple
    dtype: str  # in the file, such as "float32" or "bfloat16"
    names: tuple  # in the file
    read: Callable  # `read()` returns a numpy array, float32 for float16 and bfloat16

    def map(self, shape, function):
        """Returns the lazy array `function(array)`, which has the given shape."""
        return dataclasses.replace(self, shape=tuple(shape), read=lambda: function(self.read()))

    def reshape(self, shape):
        return self.map(shape, lambda array: array.reshape(shape))

    def transpose(self, axes=(1, 0)):
        return self.map([self.shape[axis] for axis in axes], lambda array: array.transpose(axes))

    def split(self, parts):
        """Returns equal parts along the first axis."""
        size = self.shape[0] // parts
        shape = (size, *self.shape[1:])
        return [self.map(shape, lambda array, i=i: array[i * size : (i + 1) * size]) for i in range(parts)]


def _check_start(path):
    """Raises a `ValueError` for files that are often downloaded in place of weights."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        start = file.read(100)
        problem = "is empty." if not start else ""
        if start.startswith(b"version https://git-lfs"):
            problem = "is a git-lfs pointer, not the weights: `git lfs pull` downloads them."
        if start.lstrip().startswith(b"<"):
            problem = "is a web page (HTML), not the weights: download the file itself."
        if problem:
            raise ValueError(f"The file {problem} Received: {path}")


class _File(contextlib.ExitStack):
    """A context manager with the arrays of a file as `arrays`, `{name: LazyArray}`, readable while it is open."""

    comment = ""

    def __init__(self, path):
        super().__init__()
        self.path, self.arrays, self._last = path, {}, {}
        _check_start(path)

    def _lazy_array(self, name, shape, dtype, key):
        return LazyArray(tuple(shape), dtype, (name,), lambda: self._read_once(name, key))

    def _read_once(self, name, key):
        """Caches the last array, because parts of an array are read one after the other."""
        if name not in self._last:
            self._last.clear()
            self._last[name] = self._read(name, key)
        return self._last[name]


class NpzFile(_File):
    """The arrays of an .npz file, readable while it is open. A damaged or pickled file is a `ValueError`."""

    # `except Exception`, because `zipfile` and numpy raise many kinds of exceptions for damaged files.

    def __init__(self, path):
        super().__init__(path)
        try:
            self._zip = self.enter_context(zipfile.ZipFile(path))
        except Exception as error:
            raise ValueError(
                f"A checkpoint must be a readable .npz file, a complete zip archive ({error}). Received: {path}"
            ) from error
        self.comment = self._zip.comment.decode("utf-8", "replace")
        for member in self._zip.infolist():
            name = member.filename.removesuffix(".npy")
            self.arrays[name] = self._lazy_array(name, *self._read_header(member), member)

    def _read_header(self, member):
        """Returns the shape and dtype of a member; raises a `ValueError` if it is not an array of numbers."""
        try:
            with self._zip.open(member) as file:
                version = np.lib.format.read_magic(file)
                readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = readers[version](file)
                size = file.tell() + math.prod(shape) * dtype.itemsize
        except Exception as error:
            raise ValueError(
                f"A checkpoint must only contain arrays in numpy's format; {member.filename!r} is not one ({error}). "
                f"Received: {self.path}"
            ) from error
        is_bfloat16 = dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None  # numpy writes it as raw data
        if dtype.kind not in "biuf" and not is_bfloat16:
            kind = "a pickled object, which is never loaded" if dtype.hasobject else f"an array of {str(dtype)[:50]}"
            raise ValueError(
                f"A checkpoint must only contain numbers; {member.filename!r} is {kind}. Received: {self.path}"
            )
        if size != member.file_size:
            raise ValueError(
                f"The array {member.filename!r} of the checkpoint does not have the size of its declared shape {shape}."
                f" Received: {self.path}"
            )
        return shape, "bfloat16" if is_bfloat16 else dtype.name

    def _read(self, name, member):
        try:
            with self._zip.open(member) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                file.read(1)  # zipfile verifies the checksum at the end
        except Exception as error:
            raise ValueError(f"The array {name!r} cannot be read ({error}). Received: {self.path}") from error
        if array.dtype.kind == "V":  # bfloat16: the upper half of a float32
            return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float32) if array.dtype == np.float16 else array


class SafetensorsFile(_File):
    """The arrays of a .safetensors file, readable while it is open. A wrong header is a `ValueError`."""

    def __init__(self, path):
        from safetensors import SafetensorError, safe_open

        super().__init__(path)
        try:
            size = os.path.getsize(path)
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER):
                raise ValueError(f"it declares a length of {length} bytes in a file of {size} bytes")
            self._file = self.enter_context(safe_open(path, framework="np"))
            for name in self._file.keys():  # noqa: SIM118
                entry = self._file.get_slice(name)
                dtype = _SAFETENSORS_DTYPES.get(entry.get_dtype(), entry.get_dtype())
                self.arrays[name] = self._lazy_array(name, entry.get_shape(), dtype, name)
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(f"The header of the .safetensors file is invalid: {error}. Received: {path}") from error

    def _read(self, name, key):
        array = self._file.get_tensor(key)
        return array.astype(np.float32) if self.arrays[name].dtype in _SAFETENSORS_DTYPES.values() else array


class ShardedFile(contextlib.ExitStack):
    """The arrays of several .safetensors files, as a context manager like that of one file."""

    comment = ""

    def __init__(self, paths):
        super().__init__()
        if missing := [path for path in paths if not os.path.exists(path)]:
            raise ValueError(f"{len(missing)} of {len(paths)} files in the index are missing. Received: {missing[0]}")
        files = [self.enter_context(SafetensorsFile(path)) for path in paths]
        self.arrays = {name: array for file in files for name, array in file.arrays.items()}
