"""Reading .safetensors files, the format of timm and Hugging Face.

A file is eight bytes of length, a JSON header and raw numbers. The `safetensors` package would be a compiled dependency
for these few lines, and its numpy interface does not read bfloat16 on every platform.
"""

import json
import math
import os

import numpy as np

from keras_vit.checkpoints.lazy_array import LazyArray, to_float32

# Bytes. The header of ViT-H/14 has 60,000; the specification's bound of 100 MB takes minutes to parse.
_MAX_HEADER = 10_000_000
_MAX_RANK = 32
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "V2", "I64": "<i8", "I32": "<i4", "I16": "<i2"}
_DTYPES |= {"I8": "i1", "U8": "u1", "BOOL": "?"}
_DTYPE_NAMES = {"BF16": "bfloat16"}


class SafetensorsFile:
    """The arrays of a .safetensors file, read from its header; a context manager that closes the file.

    Nothing in the header is trusted: every array must lie inside the file, have the size of its shape, and begin where
    the one before ends, so that each byte belongs to exactly one array.

    Args:
        path: a local file.

    Attributes:
        arrays: `{name: LazyArray}`, which can be read while the file is open.
        comment: "", for the format has none.

    Raises:
        ValueError: the file is missing, or its header does not describe it.
    """

    comment = ""

    def __init__(self, path):
        self.path = path
        try:
            self._file = open(path, "rb")  # noqa: SIM115 (closed in __exit__)
        except OSError as error:
            raise ValueError(f"A checkpoint must be a readable file ({error}). Received: {path}") from error
        try:
            self.arrays = self._parse()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def _header_error(self, what):
        return ValueError(f"The header of the .safetensors file is wrong: {what}. Received: {self.path}")

    def _parse(self):
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise self._header_error(f"it declares a length of {length} bytes, in a file of {size}")
        try:
            header = json.loads(self._file.read(length).decode("utf-8"), object_pairs_hook=_unique_keys)
        except (ValueError, RecursionError) as error:
            raise self._header_error(f"it is not JSON ({error})") from error
        if not isinstance(header, dict):
            raise self._header_error("it is not a JSON object")
        header.pop("__metadata__", None)
        start, arrays, spans = 8 + length, {}, []
        for name, entry in header.items():
            arrays[name], span = self._lazy_array(name, entry, start, size)
            spans.append(span)
        end = 0
        for first, last in sorted(spans):
            if first != end:
                raise self._header_error(f"its arrays overlap or leave a gap at byte {min(first, end)}")
            end = last
        if start + end != size:
            raise self._header_error(f"its arrays end at byte {start + end}, and the file has {size}")
        return arrays

    def _lazy_array(self, name, entry, start, size):
        """The `LazyArray` of one entry of the header, and the bytes `(first, last)` it takes of a file of `size`."""
        try:
            code, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
            numbers = [*shape, first, last]
        except (TypeError, KeyError, ValueError) as error:
            raise self._header_error(f"{name!r} lacks a dtype, shape or offsets") from error
        # No size is larger than the file, so that their product is soon computed.
        if len(numbers) > _MAX_RANK + 2 or not all(type(n) is int and 0 <= n <= size for n in numbers):
            raise self._header_error(f"{name!r} has a shape or offsets that are not sizes")
        if code not in _DTYPES:
            raise self._header_error(f"{name!r} has the dtype {code!r}, which is not supported")
        dtype = np.dtype(_DTYPES[code])
        if math.prod(shape) * dtype.itemsize != last - first:
            raise self._header_error(
                f"{name!r} takes {last - first} bytes, which is not the size of its shape {tuple(shape)}"
            )

        def read(verify=True):
            self._file.seek(start + first)
            array = np.fromfile(self._file, dtype, math.prod(shape))
            if array.size != math.prod(shape):
                raise ValueError(f"The array {name!r} of the checkpoint is cut short. Received: {self.path}")
            return to_float32(array.reshape(shape))

        return LazyArray(tuple(shape), _DTYPE_NAMES.get(code, dtype.name), (name,), read), (first, last)


def _unique_keys(pairs):
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name comes twice")
    return entries
