"""Fetching published files: a mirror folder, a cache, and downloads that are whole or not there."""

import hashlib
import os
import pathlib
import time
import urllib.error
import urllib.parse

import keras

MIRROR = "KERAS_VIT_WEIGHTS"

_UNITS = {"MiB": (2**20, 0.15), "GiB": (2**30, 0.005)}  # bytes, and how exact the listed number is


def fetch(url, size=None):
    """A local copy of a file.

    Looked for in the folder that the environment variable `KERAS_VIT_WEIGHTS` names, then in Keras' cache, then
    downloaded into it with progress. The cache is keyed by the whole address. A file gets its name there when it is
    complete, and its SHA-256 is written beside it then and compared at every later use.

    Args:
        url: https, http or gs address.
        size: what the file should measure, as published: "393.69 MiB" within 0.15, "1.22 GiB" within 0.005; or None.

    Returns:
        The path of the file, a string.

    Raises:
        ValueError: the file has another size than it should, or has changed since it was first used.
        ConnectionError: it could not be downloaded; the message says where to put it by hand.
    """
    url = https(url)
    mirrored = _in_mirror(url)
    if mirrored is not None and mirrored.exists():
        _check_size(mirrored, size)
        _check_hash(mirrored, write=False)
        return str(mirrored)
    cached = cache_path(url)
    if not cached.exists():
        _download(url, cached, size, mirrored)
    _check_size(cached, size)
    _check_hash(cached, write=True)
    return str(cached)


def https(url):
    """The https address of a gs one; others as they are."""
    if url.startswith("gs://"):
        return "https://storage.googleapis.com/" + urllib.parse.quote(urllib.parse.unquote(url[5:]))
    return url


def cache_path(url):
    """Where the cache keeps a file: a folder for each address, since two of them end in `ViT-B_16.npz`."""
    parts = urllib.parse.urlsplit(url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    home = os.environ.get("KERAS_HOME") or "~/.keras"  # as Keras finds it, which has no public name for it
    return pathlib.Path(home).expanduser() / "keras_vit" / f"{parts.hostname}-{digest}" / _file_name(parts)


def _file_name(parts):
    name = urllib.parse.unquote(parts.path).rpartition("/")[2]
    return "".join(c if c.isalnum() or c in "+-_." else "_" for c in name).lstrip(".") or "file"


def _in_mirror(url):
    """Where a mirror would have the file: `imagenet21k/ViT-B_16.npz` as in the bucket, others under their host."""
    folder = os.environ.get(MIRROR)
    if not folder:
        return None
    parts = urllib.parse.urlsplit(url)
    path = [part for part in urllib.parse.unquote(parts.path).split("/") if part not in ("", ".", "..")]
    if parts.hostname == "storage.googleapis.com" and path[:1] == ["vit_models"]:
        path = path[1:]
    elif parts.hostname != "storage.googleapis.com":
        path = [parts.hostname or "", *path]
    return pathlib.Path(folder).expanduser().joinpath(*path)


def _download(url, target, size, mirrored):
    """Downloads beside the target and renames; a process that dies leaves nothing under the target's name."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for part in target.parent.glob("*.part"):
            if time.time() - part.stat().st_mtime > 24 * 3600:
                part.unlink(missing_ok=True)  # of a process that was killed
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        # Keras compares what arrives with Content-Length, and removes the part where it is short.
        keras.utils.get_file(part.name, url, cache_dir=str(target.parent), cache_subdir="", force_download=True)
    except Exception as error:
        if isinstance(error.__context__, urllib.error.HTTPError):
            error.__context__.close()  # Keras leaves the connection open
        places = str(target) if mirrored is None else f"{mirrored} or {target}"
        raise ConnectionError(
            f"{target.name} could not be downloaded ({error}). Without a network, fetch {url} elsewhere and put it "
            f"at {places}, or set {MIRROR} to a folder that mirrors the bucket. Received: {url}"
        ) from error
    try:
        _check_size(part, size, url)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _check_size(path, size, source=None):
    if size is None:
        return
    listed, unit = size.split()
    in_bytes, tolerance = _UNITS[unit]
    actual = path.stat().st_size / in_bytes
    if abs(actual - float(listed)) > tolerance:
        raise ValueError(
            f"The file must measure {size}, as it was published; this one is cut short or another file. "
            f"Received: {actual:.4f} {unit}, {source or path}"
        )


def _check_hash(path, write):
    """Compares the file with the SHA-256 beside it; where there is none yet, writes it."""
    beside = path.with_name(path.name + ".sha256")
    if not beside.exists():
        if write:
            part = beside.with_name(f"{beside.name}.{os.getpid()}.part")
            part.write_text(f"{sha256(path)}  {path.name}\n")
            os.replace(part, beside)
        return
    expected, actual = beside.read_text().split()[:1], sha256(path)
    if expected != [actual]:
        raise ValueError(
            f"The file is not the one that was first used (its SHA-256 is not the one in {beside}). Delete both to "
            f"fetch it again. Received: sha256={actual}, {path}"
        )


def sha256(path):
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
