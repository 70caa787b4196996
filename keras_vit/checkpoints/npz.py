"""Reading .npz files: headers first, then one array at a time, and never a pickled object."""

import math
import os
import struct
import tokenize
import zipfile
import zlib

import numpy as np

from keras_vit.checkpoints.lazy_array import LazyArray, to_float32

# Expanded size over file size. Trained weights hardly compress; Deflate reaches 1032, and members that overlap in the
# file have no bound.
_MAX_EXPANSION = 200
# What `zipfile` raises for a damaged archive, directory or member, and numpy for a header that it parses as Python.
_ERRORS = (
    OSError, ValueError, KeyError, IndexError, EOFError, RuntimeError, OverflowError, zipfile.BadZipFile, zlib.error,
    struct.error, TypeError, SyntaxError, tokenize.TokenError, MemoryError, RecursionError, NotImplementedError,
)  # fmt: skip


class NpzFile:
    """The arrays of an .npz file, read from its headers; a context manager that closes the file.

    Attributes:
        arrays: `{name: LazyArray}`, which can be read while the file is open.
        comment: that of the archive, a string.

    Raises:
        ValueError: the file is missing, is not an .npz, is cut short, expands without bound, or holds pickled objects.
    """

    def __init__(self, path):
        self.path = path
        try:
            size = os.path.getsize(path)
            self._zip = zipfile.ZipFile(path)
        except _ERRORS as error:
            raise ValueError(
                f"A checkpoint must be a readable .npz file, an uncut zip archive of arrays ({error}). Received: {path}"
            ) from error
        try:
            self.comment = self._zip.comment.decode("utf-8", "replace")
            expanded = sum(member.file_size for member in self._zip.infolist())
            if expanded > _MAX_EXPANSION * size:
                raise ValueError(
                    f"The archive of {size} bytes declares an expanded size of {expanded}, which weights never reach; "
                    f"it was not read. Received: {path}"
                )
            self.arrays = {}
            for member in self._zip.infolist():
                name = member.filename.removesuffix(".npy")
                if name in self.arrays:
                    raise ValueError(f"The checkpoint holds {name!r} twice. Received: {path}")
                self.arrays[name] = self._lazy_array(name, member)
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._zip.close()

    def _lazy_array(self, name, member):
        """The `LazyArray` of one member, from its header; refuses members that are not arrays of numbers."""
        try:
            with self._zip.open(member) as file:
                version = np.lib.format.read_magic(file)
                headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = headers[version](file)
                header = file.tell()
        except _ERRORS as error:
            raise ValueError(
                f"A checkpoint holds arrays in numpy's format only, and {member.filename!r} is not one ({error}). "
                f"Received: {self.path}"
            ) from error
        if dtype.hasobject:
            raise ValueError(
                f"A checkpoint holds numbers only, and {member.filename!r} is a pickled object, which is never "
                f"loaded. Received: {self.path}"
            )
        is_bfloat16 = dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None  # numpy writes it as raw data
        if dtype.kind not in "biuf" and not is_bfloat16:
            raise ValueError(
                f"A checkpoint holds numbers only, and {member.filename!r} is an array of {str(dtype)[:50]}. "
                f"Received: {self.path}"
            )
        if header + math.prod(shape) * dtype.itemsize != member.file_size:
            raise ValueError(
                f"The array {name!r} of the checkpoint does not have the size of its declared shape {shape}. "
                f"Received: {self.path}"
            )

        def read():
            try:
                with self._zip.open(member) as file:
                    array = np.lib.format.read_array(file, allow_pickle=False)
                    file.read(1)  # zipfile compares the checksum at the end
            except _ERRORS as error:
                raise ValueError(
                    f"The array {name!r} of the checkpoint cannot be read ({error}). Received: {self.path}"
                ) from error
            return to_float32(array)

        return LazyArray(tuple(shape), "bfloat16" if is_bfloat16 else dtype.name, (name,), read)
