"""An array of a checkpoint that has not been read yet, and the changes of layout that are applied once it is."""

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
        read: `read(verify=True)` returns a numpy array of `shape`, float32 where the file has float16 or bfloat16. With
            `verify=False` a checksum is not compared again.
    """

    shape: tuple
    dtype: str
    names: tuple
    read: Callable

    def map(self, shape, function):
        """The array after `function(array)`, which returns an array of `shape`."""
        return dataclasses.replace(self, shape=tuple(shape), read=lambda verify=True: function(self.read(verify)))

    def reshape(self, shape):
        return self.map(shape, lambda array: array.reshape(shape))

    def transpose(self, axes=(1, 0)):
        return self.map([self.shape[axis] for axis in axes], lambda array: array.transpose(axes))


class LastRead:
    """Slices lazy arrays, and keeps the array that was read last.

    The slices of an array are read one after the other; without this each of them would read the whole array again.
    """

    def __init__(self):
        self._source = self._array = None

    def slice(self, source, shape, index):
        """The `LazyArray` of `array[index]`, which has `shape`, for the `LazyArray` `source` of `array`."""

        def read(verify=True):
            if self._source is not source:
                self._source = self._array = None
                self._array = source.read(verify)
                self._source = source
            return self._array[index]

        return dataclasses.replace(source, shape=tuple(shape), read=read)


def to_float32(array):
    """float16 and bfloat16 (`V2` to numpy, which lacks it) as float32, which holds both exactly; others unchanged."""
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if array.dtype == np.float16:
        return array.astype(np.float32)
    return array


# PyTorch's layouts, of timm and Hugging Face. Where heads do not divide an array it stays as it is: the load compares
# shapes and reports it.


def dense_from_pytorch(kernel):
    """`(out, in)` to `(in, out)`."""
    return kernel.transpose()


def conv_from_pytorch(kernel):
    """`(out, in, height, width)` to `(height, width, in, out)`."""
    return kernel.transpose((2, 3, 1, 0))


def qkv_from_pytorch(array, num_heads):
    """A query, key or value: kernel `(num_heads * size, D)` to `(D, num_heads, size)`, bias likewise."""
    if len(array.shape) == 2:
        array = dense_from_pytorch(array)
    *rest, units = array.shape
    if num_heads is None or units % num_heads:
        return array
    return array.reshape((*rest, num_heads, units // num_heads))


def attention_output_from_pytorch(kernel, num_heads):
    """The projection after attention: kernel `(D, num_heads * size)` to `(num_heads, size, D)`."""
    kernel = dense_from_pytorch(kernel)
    units, hidden_size = kernel.shape
    if num_heads is None or units % num_heads:
        return kernel
    return kernel.reshape((num_heads, units // num_heads, hidden_size))


def split_qkv(array, last_read):
    """Query, key and value out of one array that has them along its first axis."""
    size = array.shape[0] // 3
    return [last_read.slice(array, (size, *array.shape[1:]), slice(i * size, (i + 1) * size)) for i in range(3)]
