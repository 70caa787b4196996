"""Arrays of a checkpoint that are read late, with the changes of layout that are applied then."""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class LazyArray:
    """An array in a file: its shape and dtype, known from a header, and a function that reads it.

    Attributes:
        shape: tuple of int.
        dtype: name of the dtype in the file, such as "float32" or "bfloat16".
        names: tuple of the names in the file that it is read from.
        read: `read()` returns a numpy array of `shape`, float32 for float16 and bfloat16 in the file.
    """

    shape: tuple
    dtype: str
    names: tuple
    read: Callable

    def map(self, shape, function):
        """The array after `function(array)`, which returns an array of `shape`."""
        return dataclasses.replace(self, shape=tuple(shape), read=lambda: function(self.read()))

    def reshape(self, shape):
        return self.map(shape, lambda array: array.reshape(shape))

    def transpose(self, axes=(1, 0)):
        return self.map([self.shape[axis] for axis in axes], lambda array: array.transpose(axes))


class LastRead:
    """Slices lazy arrays and keeps the array read last, since its slices are read one after the other."""

    def __init__(self):
        self._source = self._array = None

    def slice(self, source, shape, index):
        """The `LazyArray` of `array[index]`, which has `shape`, for the `LazyArray` `source` of `array`."""

        def read():
            if self._source is not source:
                self._source = self._array = None
                self._array, self._source = source.read(), source
            return self._array[index]

        return dataclasses.replace(source, shape=tuple(shape), read=read)

    def split(self, source, parts):
        """The `LazyArray`s of equal parts along the first axis."""
        size = source.shape[0] // parts
        shape = (size, *source.shape[1:])
        return [self.slice(source, shape, slice(i * size, (i + 1) * size)) for i in range(parts)]


def to_float32(array):
    """float16 and bfloat16 (`V2` in an .npz, since numpy lacks it) as float32, which holds both exactly."""
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array
