"""Finds the published weights of all families by name."""

import contextlib
import os
import re
import typing
from typing import Any

from keras_vit.arguments import did_you_mean
from keras_vit.checkpoints import downloading, hub, registry
from keras_vit.checkpoints.registry import FAMILIES, PublishedWeights

# Paths of weight files, by the run, export or .keras file that they replace; see `stand_in`.
_STAND_INS: dict[str, str] = {}


@contextlib.contextmanager
def stand_in(source, path):
    """Makes `resolve(source)` return the weights at `path`, for sources without weight files."""
    _STAND_INS[source] = path
    try:
        yield
    finally:
        _STAND_INS.pop(source, None)


class ResolvedCheckpoint(typing.NamedTuple):
    """A local checkpoint.

    Attributes:
        path: the local path.
        subtree: name of the subtree that contains the weights; "" for the whole file.
        published: the entry of a published file, or None.
    """

    path: str
    subtree: str = ""
    published: PublishedWeights | None = None


def published_files() -> list[PublishedWeights]:
    """Returns the published files of all families."""
    return [entry for family in FAMILIES for entry in family.published]


def find_published(
    source: str | os.PathLike,
    input_shape: tuple[int | None, ...] = (None, None, None),
    **sizes: Any,
) -> PublishedWeights | None:
    """Returns the published file for a name and the arguments of a model, or None for a path or
    URL.

    For a Hub repository, returns None if the repository has no published file of this size.

    Args:
        source: a name, Hub repository, path or URL.
        input_shape: `(height, width, channels)` of the model's images; the height selects one of
            several files.
        **sizes: arguments of the model, such as `patch_size`, `num_layers`, `hidden_size` and
            `resnet_blocks`.

    Raises:
        ValueError: no file is published under this name for this model.
    """
    return find(source, registry.find_sizes(sizes), input_shape[0])


def fetch(
    source: str | os.PathLike,
    input_shape: tuple[int | None, ...] = (None, None, None),
    **sizes: Any,
) -> str:
    """Returns the local path of the file for a source, and downloads the file if necessary.

    Args:
        source: a name, Hub repository, path or URL.
        input_shape: `(height, width, channels)` of the model's images; the height selects one of
            several files.
        **sizes: arguments of the model, as for `find_published`.

    Raises:
        ValueError: the file or name does not exist, no file is published under this name for this
            model, or the source is a PyTorch file or a folder without exactly one checkpoint.
        ConnectionError: the file could not be downloaded.
    """
    return resolve(source, registry.find_sizes(sizes), input_shape[0]).path


def resolve(source, sizes=(), resolution=None):
    """Returns the `ResolvedCheckpoint` for a source; `sizes` and `resolution` are as for `find`."""
    text = _STAND_INS.get(os.fspath(source), os.fspath(source))
    if text.endswith((".pth", ".pt", ".bin", ".ckpt")):
        raise ValueError(
            "PyTorch files are not supported, because they can run arbitrary code. Save the "
            "weights in PyTorch with safetensors.torch.save_file(state_dict, 'model.safetensors'). "
            f"Received: {text}"
        )
    if is_name(text):  # takes precedence over a local file
        entry = find(text, sizes, resolution)
        if entry.url.startswith(hub.URL):
            path = _file_in(hub.fetch(entry.url.removeprefix(hub.URL)))
        else:
            path = downloading.fetch(entry.url)
        return ResolvedCheckpoint(path, published=entry)
    if os.path.exists(text):
        return ResolvedCheckpoint(_file_in(text) if os.path.isdir(text) else text)
    if match := re.fullmatch(r"(.*\.npz):([\w/]+)", text):
        return resolve(match[1], sizes, resolution)._replace(subtree=match[2])
    if re.match(r"(https?|gs)://", text):
        return ResolvedCheckpoint(downloading.fetch(text))
    if hub.is_repository(text):
        return ResolvedCheckpoint(_file_in(hub.fetch(text)), published=find(text, sizes))
    if os.path.sep in text or text.endswith((".npz", ".safetensors")):
        raise ValueError(f"The file does not exist. Received: {text}")
    collections = list(dict.fromkeys(entry.collection for entry in published_files()))
    known = known_names(sizes) if sizes else f"The published weights are {', '.join(collections)}."
    raise ValueError(
        "The file does not exist, and no published weights have this name."
        f"{did_you_mean(text, collections)} {known} Received: {text}"
    )


def _file_in(folder):
    """Returns the path of the weights in a folder.

    This is one of `hub.WEIGHTS`, or else the only index or .safetensors file.
    """
    names = os.listdir(folder)
    files = [name for name in hub.WEIGHTS if name in names][:1]
    files = files or [name for name in names if name.endswith(".safetensors.index.json")]
    files = files or [name for name in names if name.endswith(".safetensors")]
    if len(files) != 1:
        raise ValueError(
            "A folder of weights must contain one .safetensors file or one index of several files; "
            f"PyTorch files are not supported. Received: {folder} with {len(files)} such files"
        )
    return os.path.join(folder, files[0])


def find(source, sizes=(), resolution=None):
    """Returns the published file for a source and the names of one or more model sizes, or None.

    The result is None for a path, a URL, and a repository without a published file of these sizes.
    The files are those of the first size that has any. Of these, returns the file that was trained
    at `resolution`, or else the first file.
    """
    named = is_name(source)
    if named:
        entries = entries_of(source)
    else:
        url = hub.URL + os.fspath(source)
        entries = [entry for entry in published_files() if entry.url == url]
    models = {entry.model for entry in entries}
    first = next((size for size in sizes if size in models), None)
    found = [entry for entry in entries if entry.model == first]
    if named and not found:
        content = f"The file contains a {entries[0].model}. " if file_name(source) else ""
        raise ValueError(f"{content}{known_names(sizes)} Received: weights={source!r}")
    same_resolution = [entry for entry in found if entry.resolution == resolution]
    return next(iter(same_resolution or found), None)


def entries_of(source):
    """Returns the published files of a collection, or the one that "collection:name" names."""
    collection = os.fspath(source).partition(":")[0]
    if name := file_name(source):
        return [find_file(collection, name)]
    return [entry for entry in published_files() if entry.collection == collection]


def file_name(source):
    """Returns the name of the file in "collection:name", or "" for a collection."""
    return os.fspath(source).removesuffix(".npz").partition(":")[2]


def find_file(collection, name):
    """Returns a published file of a collection by name.

    Raises a `ValueError` if the collection does not list the name and has no naming rule that the
    name follows.
    """
    listed = [entry for entry in published_files() if entry.collection == collection]
    rules = [family.rules[collection] for family in FAMILIES if collection in family.rules]
    found = [entry for entry in listed if entry.name == name]
    found += [entry for _, parse in rules if (entry := parse(name))]
    if found:
        return found[0]
    known = f"be one of {', '.join(entry.name for entry in listed)}"
    if rules:
        known = f"follow the rule {rules[0][0]}"
    raise ValueError(f"The name of a file in {collection!r} must {known}. Received: {name!r}")


def known_names(sizes):
    """Returns a sentence that lists the published weights of a size, for error messages."""
    names = _collections_of(sizes)
    if not names:
        known = ", ".join(dict.fromkeys(entry.model for entry in published_files()))
        return (
            f"Weights are published for {known}, but not for this model. Use a path, a URL or a "
            "Hub repository, or train from random weights (--config.weights=)."
        )
    for family in FAMILIES:
        if family.sizes.keys() & set(sizes):
            names += [f"{collection}:<file name>" for collection in family.rules]
    return (
        f"The published weights of {sizes[0]} are {', '.join(names)}; a path, a URL or a Hub "
        "repository also works."
    )


def collection_of(size, *preferred):
    """Returns the first collection with files for a size, or "".

    Collections in `preferred` come first.
    """
    known = _collections_of([size])
    return next((name for name in (*preferred, *known) if name in known), "")


def _collections_of(sizes):
    """Returns the collections with files for one of these sizes, in the order of registration."""
    entries = [entry for entry in published_files() if entry.model in sizes]
    return list(dict.fromkeys(entry.collection for entry in entries))


def is_name(source):
    """Returns whether a string names a collection, or a file as in "augreg:<file name>"."""
    collection, _, name = os.fspath(source).partition(":")
    known = [entry.collection for entry in published_files()]
    known += [collection for family in FAMILIES for collection in family.rules]
    return collection in known and "/" not in name
