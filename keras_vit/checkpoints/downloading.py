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
_LEFTOVER_SECONDS = 24 * 3600  # after which a partial download counts as that of a killed process


def fetch(url, size=None):
    """Returns the local path of a file, downloading it into the cache if neither the mirror nor the cache has it.

    Args:
        url: an https, http or gs URL.
        size: of the file, as published: "393.69 MiB" is checked within 0.15, "1.22 GiB" within 0.005; or None.

    Raises:
        ValueError: the file has another size.
        ConnectionError: it could not be downloaded; the message says where to put it by hand.
    """
    url = https(url)
    mirrored = _in_mirror(url)
    if mirrored is not None and mirrored.exists():
        _check_size(mirrored, size)
        return str(mirrored)
    cached = cache_path(url)
    if not cached.exists():
        _download(url, cached, size, mirrored)
    _check_size(cached, size)
    return str(cached)


def https(url):
    """The https URL of a gs URL; others unchanged."""
    if url.startswith("gs://"):
        return "https://storage.googleapis.com/" + urllib.parse.quote(urllib.parse.unquote(url[5:]))
    return url


def cache_path(url):
    """The path of a file in the cache: a folder for each URL, since several end in `ViT-B_16.npz`."""
    parts = urllib.parse.urlsplit(url)
    name = urllib.parse.unquote(parts.path).rpartition("/")[2]
    name = "".join(c if c.isalnum() or c in "+-_." else "_" for c in name).lstrip(".") or "file"
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    home = os.environ.get("KERAS_HOME") or "~/.keras"  # Keras' own rule, which it has no public function for
    return pathlib.Path(home).expanduser() / "keras_vit" / f"{parts.hostname}-{digest}" / name


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
        with files.atomic_path(target) as part:
            part = pathlib.Path(part)
            # Keras compares what arrives with Content-Length, and removes the file if it is shorter.
            keras.utils.get_file(part.name, url, cache_dir=str(part.parent), cache_subdir="", force_download=True)
            _check_size(part, size, url)
    except ValueError:
        raise
    except Exception as error:
        if isinstance(error.__context__, urllib.error.HTTPError):
            error.__context__.close()  # Keras leaves the connection open
        locations = str(target) if mirrored is None else f"{mirrored} or {target}"
        raise ConnectionError(
            f"{target.name} could not be downloaded ({error}). Without a network, fetch {url} elsewhere and put it "
            f"at {locations}, or set {MIRROR} to a folder that mirrors the bucket. Received: {url}"
        ) from error


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
