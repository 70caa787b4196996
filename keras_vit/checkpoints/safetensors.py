"""Reading .safetensors files, the format of timm and Hugging Face, through the library of that name."""

import os

import numpy as np
from safetensors import SafetensorError, safe_open

from keras_vit.checkpoints.lazy_array import LazyArray

_MAX_HEADER = 10_000_000  # bytes; the header of ViT-H/14 has 60,000
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class SafetensorsFile:
    """The arrays of a .safetensors file, read from its header; a context manager that closes the file.

    Attributes:
        arrays: `{name: LazyArray}`, which can be read while the file is open.
        comment: "", since the format has none.

    Raises:
        ValueError: the file is missing, or its header does not describe it.
    """

    comment = ""

    def __init__(self, path):
        self.path = path
        try:
            size = os.path.getsize(path)
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER):
                raise ValueError(f"it declares a length of {length} bytes, in a file of {size}")
            self._file = safe_open(path, framework="np")
            self.arrays = {name: self._lazy_array(name) for name in self._file.keys()}  # noqa: SIM118
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(f"The header of the .safetensors file is wrong: {error}. Received: {path}") from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        del self._file

    def _lazy_array(self, name):
        entry = self._file.get_slice(name)
        code, shape = entry.get_dtype(), tuple(entry.get_shape())

        def read():
            array = self._file.get_tensor(name)
            return array.astype(np.float32) if code in _DTYPES else array

        return LazyArray(shape, _DTYPES.get(code, code), (name,), read)
