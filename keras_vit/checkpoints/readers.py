"""Reads .npz and .safetensors files: first the headers, then one array at a time.

Objects are never unpickled.
"""

import contextlib
import dataclasses
import os
import zipfile
from collections.abc import Callable

import numpy as np

_SAFETENSORS_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclasses.dataclass(frozen=True)
class LazyArray:
    """An array in a file, whose values are read on demand."""

    shape: tuple
    dtype: str  # dtype in the file, such as "float32" or "bfloat16"
    names: tuple  # names in the file
    read: Callable  # `read()` returns a numpy array; float16 and bfloat16 become float32

    def map(self, shape, function):
        """Returns a lazy array of this shape that applies `function` to the values."""
        return dataclasses.replace(self, shape=tuple(shape), read=lambda: function(self.read()))

    def reshape(self, shape):
        return self.map(shape, lambda array: array.reshape(shape))

    def transpose(self, axes=(1, 0)):
        return self.map([self.shape[axis] for axis in axes], lambda array: array.transpose(axes))

    def split(self, parts):
        """Splits the array into equal parts along the first axis."""
        size = self.shape[0] // parts
        shape = (size, *self.shape[1:])
        return [
            self.map(shape, lambda array, i=i: array[i * size : (i + 1) * size])
            for i in range(parts)
        ]


class _File(contextlib.ExitStack):
    """An open file, used as a context manager.

    Its `arrays`, `{name: LazyArray}`, are readable until it exits. A subclass fills them. If it
    calls `_lazy_array`, its method `_read(name, key)` returns the values of an array.
    """

    comment = ""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.arrays = {}
        self._last = {}

    def _lazy_array(self, name, shape, dtype, key):
        return LazyArray(tuple(shape), dtype, (name,), lambda: self._read_cached(name, key))

    def _read_cached(self, name, key):
        """Reads an array and caches the last one, which all parts from `LazyArray.split` read."""
        if name not in self._last:
            self._last.clear()
            self._last[name] = self._read(name, key)
        return self._last[name]


class NpzFile(_File):
    """An .npz file. Damaged files and pickled objects raise a `ValueError`."""

    # The methods catch `Exception`, because `zipfile` and numpy raise many kinds of exceptions for
    # damaged files.

    def __init__(self, path):
        super().__init__(path)
        try:
            self._zip = self.enter_context(zipfile.ZipFile(path))
        except Exception as error:
            raise ValueError(
                f"The checkpoint must be a complete .npz file, which is a zip archive ({error}). "
                f"Received: {path}"
            ) from error
        self.comment = self._zip.comment.decode("utf-8", "replace")
        for member in self._zip.infolist():
            name = member.filename.removesuffix(".npy")
            self.arrays[name] = self._lazy_array(name, *self._read_header(member), member)

    def _read_header(self, member):
        """Returns the shape and dtype of a member.

        Raises a `ValueError` if the member is not an array of numbers.
        """
        try:
            with self._zip.open(member) as file:
                if np.lib.format.read_magic(file) == (1, 0):
                    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                else:
                    shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        except Exception as error:
            raise ValueError(
                f"The member {member.filename!r} of the checkpoint is not an array in numpy's "
                f"format ({error}). Received: {self.path}"
            ) from error
        # numpy stores bfloat16 as an unstructured void type of two bytes.
        is_bfloat16 = dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None
        if dtype.kind not in "biuf" and not is_bfloat16:
            raise ValueError(
                "A checkpoint must contain only numbers; pickled objects are never loaded. "
                f"Received: {str(dtype)[:50]} in {member.filename!r} of {self.path}"
            )
        return shape, "bfloat16" if is_bfloat16 else dtype.name

    def _read(self, name, member):
        try:
            with self._zip.open(member) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                file.read(1)  # reaching the end makes zipfile verify the checksum
        except Exception as error:
            raise ValueError(
                f"The array {name!r} cannot be read ({error}). Received: {self.path}"
            ) from error
        if array.dtype.kind == "V":  # bfloat16: the upper half of a float32
            return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        is_half = array.dtype.name == "float16"  # in any byte order
        return array.astype(np.float32) if is_half else array


class SafetensorsFile(_File):
    """A .safetensors file. An invalid header raises a `ValueError`."""

    def __init__(self, path):
        from safetensors import SafetensorError, safe_open

        super().__init__(path)
        try:
            self._file = self.enter_context(safe_open(path, framework="np"))
            for name in self._file.keys():  # noqa: SIM118
                entry = self._file.get_slice(name)
                dtype = _SAFETENSORS_DTYPES.get(entry.get_dtype(), entry.get_dtype())
                self.arrays[name] = self._lazy_array(name, entry.get_shape(), dtype, name)
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(
                f"The header of the .safetensors file is invalid: {error}. Received: {path}"
            ) from error

    def _read(self, name, key):
        array = self._file.get_tensor(key)
        is_float = self.arrays[name].dtype in _SAFETENSORS_DTYPES.values()
        return array.astype(np.float32) if is_float else array


class ShardedFile(_File):
    """A checkpoint in several .safetensors files."""

    def __init__(self, paths):
        super().__init__(paths)
        if missing := [path for path in paths if not os.path.exists(path)]:
            raise ValueError(
                f"{len(missing)} of {len(paths)} files in the index are missing. Received: "
                f"{missing[0]}"
            )
        for path in paths:
            arrays = self.enter_context(SafetensorsFile(path)).arrays
            if twice := sorted(arrays.keys() & self.arrays):
                raise ValueError(
                    "Each array of a checkpoint must be in one of its files. Received: "
                    f"{twice[:10]} in {path} and in another file"
                )
            self.arrays |= arrays
