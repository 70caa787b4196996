"""Reading .safetensors files, the format of timm and Hugging Face.

It is eight bytes of length, a JSON header and raw numbers. The `safetensors` package would be a compiled requirement
for these few lines, and its numpy side does not read bfloat16 everywhere.
"""

import json
import math
import os

import numpy as np

from keras_vit.checkpoints.stored import Stored, to_float32

_MAX_HEADER = 100_000_000  # the format's own bound
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "V2", "I64": "<i8", "I32": "<i4", "I16": "<i2"}
_DTYPES |= {"I8": "i1", "U8": "u1", "BOOL": "?"}
_NAMES = {"BF16": "bfloat16"}


class SafetensorsFile:
    """The arrays of a .safetensors file, by name; a context manager like `Archive`.

    The header is believed in nothing: every array must lie inside the file, have the size of its shape, and begin
    where the one before ends, so that no byte belongs to none or to two.

    Raises:
        ValueError: the file is missing, or its header does not describe it.
    """

    def __init__(self, path):
        self.path = path
        try:
            self._file = open(path, "rb")  # noqa: SIM115 (closed in __exit__)
        except OSError as error:
            raise ValueError(f"A checkpoint must be a readable file ({error}). Received: {path}") from error
        try:
            self.metadata, self.arrays = self._parse()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def _refuse(self, what):
        return ValueError(f"The header of the .safetensors file is wrong: {what}. Received: {self.path}")

    def _parse(self):
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise self._refuse(f"it says that it has {length} bytes, in a file of {size}")
        try:
            header = json.loads(self._file.read(length).decode("utf-8"), object_pairs_hook=_without_repetition)
        except (ValueError, RecursionError) as error:
            raise self._refuse(f"it is no JSON ({error})") from error
        if not isinstance(header, dict):
            raise self._refuse("it is no JSON object")
        metadata = header.pop("__metadata__", {})
        start, arrays, spans = 8 + length, {}, []
        for name, entry in header.items():
            arrays[name], span = self._stored(name, entry, start)
            spans.append(span)
        end = 0
        for first, last in sorted(spans):
            if first != end:
                raise self._refuse(f"its arrays overlap or leave a gap at byte {min(first, end)}")
            end = last
        if start + end != size:
            raise self._refuse(f"its arrays end at byte {start + end}, and the file has {size}")
        return metadata, arrays

    def _stored(self, name, entry, start):
        try:
            code, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
            numbers = [*shape, first, last]
        except (TypeError, KeyError, ValueError) as error:
            raise self._refuse(f"{name!r} has no dtype, shape and offsets") from error
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise self._refuse(f"{name!r} has a shape or offsets that are no sizes")
        if code not in _DTYPES:
            raise self._refuse(f"{name!r} has the dtype {code!r}, which is not known here")
        dtype = np.dtype(_DTYPES[code])
        if math.prod(shape) * dtype.itemsize != last - first:
            raise self._refuse(f"{name!r} takes {last - first} bytes, not those of its shape {tuple(shape)}")

        def read(verify=True):
            self._file.seek(start + first)
            array = np.fromfile(self._file, dtype, math.prod(shape))
            if array.size != math.prod(shape):
                raise ValueError(f"The array {name!r} of the checkpoint is cut short. Received: {self.path}")
            return to_float32(array.reshape(shape))

        return Stored(tuple(shape), _NAMES.get(code, dtype.name), (name,), read), (first, last)


def _without_repetition(pairs):
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name comes twice")
    return entries
