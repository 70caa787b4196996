"""Fetching files by URL: a mirror folder, a cache, and downloads that are complete before they get their name."""

import hashlib
import os
import pathlib
import urllib.error
import urllib.parse

import keras

from keras_vit import files

MIRROR = "KERAS_VIT_WEIGHTS"

_UNITS = {"MiB": (2**20, 0.15), "GiB": (2**30, 0.005)}  # bytes, and the tolerance of a listed size in that unit
_LEFTOVER_SECONDS = 24 * 3600  # after which a download beside its target is taken for that of a killed process


def fetch(url, size=None):
    """The local copy of a file.

    It is looked for in the folder that the environment variable `KERAS_VIT_WEIGHTS` names, then in Keras' cache, and
    else downloaded into the cache with a progress bar. The cache is keyed by the whole URL. A file gets its name there
    when it is complete; its SHA-256 is written beside it and compared at every later use.

    Args:
        url: an https, http or gs URL.
        size: of the file, as published: "393.69 MiB" is checked within 0.15, "1.22 GiB" within 0.005; or None.

    Returns:
        The path of the file, a string.

    Raises:
        ValueError: the file has another size, or has changed since it was first used.
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
    """The https URL of a gs URL; others unchanged."""
    if url.startswith("gs://"):
        return "https://storage.googleapis.com/" + urllib.parse.quote(urllib.parse.unquote(url[5:]))
    return url


def cache_path(url):
    """The path of a file in the cache: a folder for each URL, since several end in `ViT-B_16.npz`."""
    parts = urllib.parse.urlsplit(url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    home = os.environ.get("KERAS_HOME") or "~/.keras"  # Keras' own rule, which it has no public function for
    return pathlib.Path(home).expanduser() / "keras_vit" / f"{parts.hostname}-{digest}" / _file_name(parts)


def _file_name(parts):
    name = urllib.parse.unquote(parts.path).rpartition("/")[2]
    return "".join(c if c.isalnum() or c in "+-_." else "_" for c in name).lstrip(".") or "file"


def _in_mirror(url):
    """The path of a file in the mirror: `imagenet21k/ViT-B_16.npz` as in the bucket, others below their host."""
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
    """Downloads a file; `target` appears when it is complete and has the published size."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(target.parent, _LEFTOVER_SECONDS)
    except OSError as error:
        raise _download_error(url, target, mirrored, error) from error
    with files.atomic_path(target) as part:
        part = pathlib.Path(part)
        try:
            # Keras compares what arrives with Content-Length, and removes the file if it is shorter.
            keras.utils.get_file(part.name, url, cache_dir=str(part.parent), cache_subdir="", force_download=True)
        except Exception as error:
            if isinstance(error.__context__, urllib.error.HTTPError):
                error.__context__.close()  # Keras leaves the connection open
            raise _download_error(url, target, mirrored, error) from error
        _check_size(part, size, url)


def _download_error(url, target, mirrored, error):
    locations = str(target) if mirrored is None else f"{mirrored} or {target}"
    return ConnectionError(
        f"{target.name} could not be downloaded ({error}). Without a network, fetch {url} elsewhere and put it "
        f"at {locations}, or set {MIRROR} to a folder that mirrors the bucket. Received: {url}"
    )


def _check_size(path, size, source=None):
    """Compares a file with its published size."""
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
    """Compares a file with the SHA-256 beside it; where there is none yet and `write` is set, writes it."""
    hash_file = path.with_name(path.name + ".sha256")
    if not hash_file.exists():
        if write:
            with files.atomic_write(hash_file) as file:
                file.write(f"{sha256(path)}  {path.name}\n")
        return
    expected, actual = hash_file.read_text().split()[:1], sha256(path)
    if expected != [actual]:
        raise ValueError(
            f"The file is not the one that was first used (its SHA-256 is not the one in {hash_file}). Delete both to "
            f"fetch it again. Received: sha256={actual}, {path}"
        )


def sha256(path):
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
