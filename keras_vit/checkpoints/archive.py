"""Reading .npz files: headers first, arrays one at a time, and never a pickled object."""

import contextlib
import zipfile
import zlib

import numpy as np


class Archive:
    """The arrays of an .npz file, by name; a context manager.

    `shapes` is read from the headers when the file is opened; `read(name)` brings one array into memory and
    verifies its checksum.

    Raises:
        ValueError: the file is missing, is no .npz, is cut short, or holds pickled objects.
    """

    def __init__(self, path):
        self.path = path
        with contextlib.ExitStack() as stack:
            try:
                self._zip = stack.enter_context(zipfile.ZipFile(stack.enter_context(open(path, "rb"))))
            except (OSError, zipfile.BadZipFile) as error:
                raise ValueError(
                    f"A checkpoint must be a readable .npz file, an uncut zip archive of arrays ({error}). "
                    f"Received: {path}"
                ) from error
            self.shapes = {member.removesuffix(".npy"): self._header(member) for member in self._zip.namelist()}
            self._open = stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._open.close()

    def read(self, name):
        """The array called `name`, a numpy array."""
        try:
            with self._zip.open(name + ".npy") as member:
                return np.lib.format.read_array(member, allow_pickle=False)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(
                f"The array {name!r} of the checkpoint cannot be read ({error}). Received: {self.path}"
            ) from error

    def _header(self, member):
        """The shape of one array; refuses what is no array of numbers."""
        try:
            with self._zip.open(member) as file:
                version = np.lib.format.read_magic(file)
                read = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }[version]
                shape, _, dtype = read(file)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(
                f"A checkpoint holds arrays in numpy's format only, and {member!r} is none ({error}). "
                f"Received: {self.path}"
            ) from error
        if dtype.hasobject:
            raise ValueError(
                f"A checkpoint holds numbers only, and {member!r} is a pickled object, which is never loaded. "
                f"Received: {self.path}"
            )
        return shape
