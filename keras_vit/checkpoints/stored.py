"""An array in a file that has not been read yet."""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Stored:
    """An array in a file: what it is from its header, and how to read it.

    Dialects turn the arrays of a file into those of the original's layout without reading any, by `then`.
    """

    shape: tuple
    dtype: str
    names: tuple  # what it is made of, in the file's words
    read: Callable  # read(verify=True) -> numpy array; without `verify` a checksum need not be compared again

    def then(self, shape, change):
        """This array after `change(array)`, which gives `shape`."""
        return dataclasses.replace(self, shape=tuple(shape), read=lambda verify=True: change(self.read(verify)))

    def reshaped(self, shape):
        return self.then(shape, lambda array: array.reshape(shape))

    def transposed(self, axes=(1, 0)):
        return self.then([self.shape[axis] for axis in axes], lambda array: array.transpose(axes))


class LastRead:
    """Cuts arrays of a file into parts, and keeps the one that was read last.

    Parts are read one after the other; without this each would read the whole array again.
    """

    def __init__(self):
        self._stored = self._array = None

    def part(self, stored, shape, index):
        """The `Stored` of `array[index]`, which has `shape`."""

        def read(verify=True):
            if self._stored is not stored:
                self._stored = self._array = None
                self._array = stored.read(verify)
                self._stored = stored
            return self._array[index]

        return dataclasses.replace(stored, shape=tuple(shape), read=read)


def to_float32(array):
    """float16 and bfloat16 (two nameless bytes to numpy) as float32, which holds both exactly; others as they are."""
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if array.dtype == np.float16:
        return array.astype(np.float32)
    return array
