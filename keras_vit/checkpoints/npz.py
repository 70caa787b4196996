"""Reading .npz files: headers first, then one array at a time, and never a pickled object."""

import io
import math
import struct
import tokenize
import zipfile
import zlib

import numpy as np

from keras_vit.checkpoints.lazy_array import LazyArray, to_float32

# Bytes. numpy refuses longer headers too, but only after reading them.
_MAX_HEADER = 10_000
# Expanded size over file size. Trained weights hardly compress; Deflate reaches 1032, and members that overlap in the
# file have no bound.
_MAX_EXPANSION = 200
# What `zipfile` raises for a damaged archive, directory or member, and numpy for a header that it parses as Python.
_ERRORS = (
    OSError, ValueError, KeyError, IndexError, EOFError, RuntimeError, OverflowError, zipfile.BadZipFile, zlib.error,
    struct.error, TypeError, SyntaxError, tokenize.TokenError, MemoryError, RecursionError,
)  # fmt: skip


class NpzFile:
    """The arrays of an .npz file, read from its headers; a context manager that closes the file.

    Args:
        path: a local file.

    Attributes:
        arrays: `{name: LazyArray}`, which can be read while the file is open.
        comment: that of the archive, a string.

    Raises:
        ValueError: the file is missing, is not an .npz, is cut short, expands without bound, or holds pickled objects.
    """

    def __init__(self, path):
        self.path = path
        try:
            self._file = open(path, "rb")  # noqa: SIM115 (closed in __exit__)
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self._zip = zipfile.ZipFile(self._file)
            self.comment = self._zip.comment.decode("utf-8", "replace")
        except _ERRORS as error:
            self._file.close()
            raise self._unreadable(error) from error
        try:
            self._check_expansion()
            self.arrays = {}
            for member in self._zip.infolist():
                name = member.filename.removesuffix(".npy")
                if name in self.arrays:
                    raise ValueError(f"The checkpoint holds {name!r} twice. Received: {path}")
                self.arrays[name] = self._lazy_array(name, member)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._zip.close()
        self._file.close()

    def _unreadable(self, error):
        return ValueError(
            f"A checkpoint must be a readable .npz file, an uncut zip archive of arrays ({error}). "
            f"Received: {self.path}"
        )

    def _check_expansion(self):
        self._file.seek(0, io.SEEK_END)
        size = self._file.tell()
        expanded = sum(member.file_size for member in self._zip.infolist())
        if expanded > _MAX_EXPANSION * size:
            raise ValueError(
                f"The archive of {size} bytes declares an expanded size of {expanded}, which weights never reach; "
                f"it was not read. Received: {self.path}"
            )

    def _lazy_array(self, name, member):
        """The `LazyArray` of one member, from its header; refuses members that are not arrays of numbers."""
        try:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError("its compression is not one that numpy writes")
            with self._zip.open(member) as file:
                shape, fortran_order, dtype, header = _header(file)
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
        if dtype.kind not in "biuf" and _dtype_name(dtype) != "bfloat16":
            raise ValueError(
                f"A checkpoint holds numbers only, and {member.filename!r} is an array of {str(dtype)[:50]}. "
                f"Received: {self.path}"
            )
        if header + math.prod(shape) * dtype.itemsize != member.file_size:
            raise ValueError(
                f"The array {name!r} of the checkpoint does not have the size of its declared shape {shape}. "
                f"Received: {self.path}"
            )

        def read(verify=True):
            try:
                array = self._read(member, header, dtype, math.prod(shape), verify)
            except _ERRORS as error:
                raise ValueError(
                    f"The array {name!r} of the checkpoint cannot be read ({error}). Received: {self.path}"
                ) from error
            array = array.reshape(shape, order="F" if fortran_order else "C")
            return to_float32(array)

        return LazyArray(tuple(shape), _dtype_name(dtype), (name,), read)

    def _read(self, member, header, dtype, count, verify):
        """The numbers of one member, flat."""
        if member.compress_type == zipfile.ZIP_STORED:
            # The form that numpy writes. Reading from the file itself avoids zipfile's copies.
            self._file.seek(member.header_offset + 26)
            lengths = self._file.read(4)
            skip = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
            self._file.seek(skip, io.SEEK_CUR)
            start = self._file.read(header)
            array = np.fromfile(self._file, dtype, count)
            if array.size != count:
                raise EOFError("the file has become shorter")
            if verify and zlib.crc32(array.view(np.uint8), zlib.crc32(start)) != member.CRC:
                raise zipfile.BadZipFile("Bad CRC-32 checksum")
            return array
        with self._zip.open(member) as file:
            file.read(header)
            array = np.empty(count, dtype)
            view = memoryview(array.view(np.uint8)) if count else memoryview(b"")
            done = 0
            while done < len(view):
                read = file.readinto(view[done : done + (1 << 20)])
                if not read:
                    raise EOFError("it ends early")
                done += read
            file.read(1)  # zipfile compares the checksum at the end
            return array


def _header(file):
    """`(shape, fortran_order, dtype, length)` of the header of an .npy stream; reads no further."""
    start = file.read(12)
    if len(start) < 12 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2):
        raise ValueError("it does not begin like an .npy file")
    length = int.from_bytes(start[8:10] if start[6] == 1 else start[8:12], "little")
    end = length + (10 if start[6] == 1 else 12)
    if length > _MAX_HEADER:
        raise ValueError(f"its header has {length} bytes")
    stream = io.BytesIO(start + file.read(end - 12))
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    return *read(stream), end


def _dtype_name(dtype):
    # numpy has no bfloat16 and writes it as raw data of two bytes.
    return "bfloat16" if dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None else dtype.name
