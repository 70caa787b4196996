"""Downloads files by URL, with a mirror folder and a cache; a file appears only when it is complete."""

import hashlib
import os
import pathlib
import urllib.error
import urllib.parse

import keras

from keras_vit import files

MIRROR = "KERAS_VIT_WEIGHTS"

_LEFTOVER_SECONDS = 24 * 3600  # a partial download older than this is left from a killed process


def fetch(url):
    """Returns the local path of a file; downloads it to the cache if neither the mirror nor the cache has it."""
    url = https(url)
    mirrored = _in_mirror(url)
    if mirrored is not None and mirrored.exists():
        return str(mirrored)
    cached = cache_path(url)
    if not cached.exists():
        _download(url, cached, mirrored)
    return str(cached)


def https(url):
    """Returns the https URL of a gs URL, and other URLs unchanged."""
    if url.startswith("gs://"):
        return "https://storage.googleapis.com/" + urllib.parse.quote(urllib.parse.unquote(url[5:]))
    return url


def cache_path(url):
    """Returns the path of a file in the cache: one folder per URL, since several end in `ViT-B_16.npz`."""
    parts = urllib.parse.urlsplit(url)
    name = urllib.parse.unquote(parts.path).rpartition("/")[2]
    name = "".join(c if c.isalnum() or c in "+-_." else "_" for c in name).lstrip(".") or "file"
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    home = os.environ.get("KERAS_HOME") or "~/.keras"  # as Keras does, which has no public function for it
    return pathlib.Path(home).expanduser() / "keras_vit" / f"{parts.hostname}-{digest}" / name


def _in_mirror(url):
    """Returns the path of a file in the mirror: `imagenet21k/ViT-B_16.npz` as in the bucket, or `<host>/<path>`."""
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


def _download(url, target, mirrored):
    """Downloads a file; `target` appears when the download is complete."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(target.parent, _LEFTOVER_SECONDS)
        with files.atomic_path(target) as part:
            part = pathlib.Path(part)
            # Keras compares the size with Content-Length, and removes a file that is too short.
            keras.utils.get_file(part.name, url, cache_dir=str(part.parent), cache_subdir="", force_download=True)
    except Exception as error:
        if isinstance(error.__context__, urllib.error.HTTPError):
            error.__context__.close()  # Keras leaves the connection open
        locations = str(target) if mirrored is None else f"{mirrored} or {target}"
        raise ConnectionError(
            f"{target.name} could not be downloaded ({error}). Without a network, download {url} elsewhere and copy it "
            f"to {locations}, or set {MIRROR} to a folder that mirrors the bucket. Received: {url}"
        ) from error
