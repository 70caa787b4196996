"""Downloads files to a cache, or finds them in a mirror folder. Downloads are atomic."""

import hashlib
import os
import pathlib
import re
import urllib.error
import urllib.parse

import keras

from keras_vit import files

MIRROR = "KERAS_VIT_WEIGHTS"

_LEFTOVER_SECONDS = 24 * 3600  # older partial downloads of killed processes are deleted


def fetch(url):
    """Returns the local path of the file at a URL.

    Downloads the file if neither the mirror nor the cache has it.
    """
    url = https(url)
    mirrored = in_mirror(url)
    if mirrored is not None and mirrored.exists():
        return str(mirrored)
    cached = cache_path(url)
    if not cached.exists():
        _download(url, cached, mirrored)
    return str(cached)


def https(url):
    """Converts a gs:// URL to https:// and leaves other URLs unchanged."""
    if url.startswith("gs://"):
        return "https://storage.googleapis.com/" + urllib.parse.quote(urllib.parse.unquote(url[5:]))
    return url


def cache_path(url):
    """Returns the cache path for a URL.

    Each URL has its own folder, because many files are named `ViT-B_16.npz`.
    """
    parts = urllib.parse.urlsplit(url)
    name = urllib.parse.unquote(parts.path).rpartition("/")[2]
    name = re.sub(r"[^\w+.-]", "_", name).lstrip(".") or "file"
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    # As in Keras, which has no public function for this folder.
    home = os.environ.get("KERAS_HOME") or "~/.keras"
    return pathlib.Path(home).expanduser() / "keras_vit" / f"{parts.hostname}-{digest}" / name


def in_mirror(url):
    """Returns the mirror path for a URL, or None if no mirror folder is set.

    Files in Google's bucket `vit_models` are at `<path>`, such as `imagenet21k/ViT-B_16.npz`. Files
    in Google's other buckets are at `<bucket>/<path>`, and files on other hosts at `<host>/<path>`.
    """
    folder = os.environ.get(MIRROR)
    if not folder:
        return None
    parts = urllib.parse.urlsplit(url)
    names = urllib.parse.unquote(parts.path).split("/")
    path = [name for name in names if name not in ("", ".", "..")]
    if parts.hostname != "storage.googleapis.com":
        path.insert(0, parts.hostname or "")
    elif path[:1] == ["vit_models"]:
        del path[0]
    return pathlib.Path(folder).expanduser().joinpath(*path)


def _download(url, target, mirrored):
    """Downloads a file to `target` atomically."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(target.parent, _LEFTOVER_SECONDS)
        with files.atomic_path(target) as part:
            part = pathlib.Path(part)
            # Keras checks the size against Content-Length and deletes a truncated file.
            keras.utils.get_file(
                part.name, url, cache_dir=str(part.parent), cache_subdir="", force_download=True
            )
    except Exception as error:
        if isinstance(error.__context__, urllib.error.HTTPError):
            error.__context__.close()  # Keras leaves the connection open
        locations = str(target) if mirrored is None else f"{mirrored} or {target}"
        raise ConnectionError(
            f"{target.name} could not be downloaded ({error}). Without network access, download "
            f"{url} on another machine and copy it to {locations}, or set {MIRROR} to a folder "
            f"that mirrors the bucket. Received: {url}"
        ) from error
