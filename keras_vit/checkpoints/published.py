"""Finds the published weights of all families by name."""

import os
import re
import typing
from typing import Any

from keras_vit.checkpoints import downloading, hub, registry
from keras_vit.checkpoints.registry import FAMILIES, PublishedWeights
from keras_vit.files import did_you_mean

_PYTORCH = (".pth", ".pt", ".bin", ".ckpt")

# Temporary files with the weights of sources that are not files of weights, such as runs.
STAND_INS: dict[str, str] = {}


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


def rows() -> list[PublishedWeights]:
    """Returns the published files of all families."""
    return [row for family in FAMILIES for row in family.published]


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


def resolve(source, size=(), resolution=None):
    """Returns the `ResolvedCheckpoint` for a source; `size` and `resolution` are as for `find`."""
    text = STAND_INS.get(os.fspath(source), os.fspath(source))
    if text.endswith(_PYTORCH):
        raise ValueError(
            "PyTorch files are not supported, because they can run arbitrary code. Save the "
            "weights in PyTorch with safetensors.torch.save_file(state_dict, 'model.safetensors'). "
            f"Received: {text}"
        )
    # A published name takes precedence over a local file.
    if not is_name(text) and os.path.exists(text):
        return ResolvedCheckpoint(_file_in(text) if os.path.isdir(text) else text)
    if match := re.fullmatch(r"(.*\.npz):([\w/]+)", text):
        return resolve(match[1], size, resolution)._replace(subtree=match[2])
    if re.match(r"(https?|gs)://", text):
        return ResolvedCheckpoint(downloading.fetch(text))
    if hub.is_repository(text) and not text.endswith(".safetensors"):
        return ResolvedCheckpoint(_file_in(hub.fetch(text)), published=find(text, size))
    if os.path.sep in text or text.endswith((".npz", ".safetensors")):
        raise ValueError(f"The file does not exist. Received: {text}")
    row = find(text, size, resolution)
    if row is None:
        raise _unknown_name(text, size)
    if row.url.startswith(hub.URL):
        return ResolvedCheckpoint(_file_in(hub.fetch(row.url.removeprefix(hub.URL))), published=row)
    return ResolvedCheckpoint(downloading.fetch(row.url), published=row)


def _unknown_name(text, sizes):
    """Returns the error for a source that is neither a file nor a name of published weights."""
    collections = list(dict.fromkeys(row.collection for row in rows()))
    if sizes:
        advice = f" {known_names(sizes)}"
    else:
        known = f" The published weights are {', '.join(collections)}."
        advice = did_you_mean(text, collections) or known
    return ValueError(
        f"The file does not exist, and no published weights have this name.{advice} Received: "
        f"{text}"
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


def find(source, size=(), resolution=None):
    """Returns the published file for a source and one or more names of a model size, or None.

    The result is None for a path, a URL, and a repository without a published file of this size. If
    several files of a collection match, returns the file that was trained at `resolution`, or else
    the first file.
    """
    size = [size] if isinstance(size, str) else size or []
    if not is_name(os.fspath(source)):
        url = f"{hub.URL}{os.fspath(source)}"
        return next((row for row in rows() if row.url == url and row.model in size), None)
    collection, _, name = os.fspath(source).removesuffix(".npz").partition(":")
    if name:
        row = find_file(collection, name)
        if row.model not in size:
            raise ValueError(
                f"The file contains a {row.model}, but the model is "
                f"{' or '.join(size) or 'not of a published size'}. Received: weights={source!r}"
            )
        return row
    found = [row for row in rows() if row.collection == collection and row.model in size]
    if not found:
        raise ValueError(f"{known_names(size)} Received: weights={source!r}")
    return next((row for row in found if row.resolution == resolution), found[0])


def find_file(collection, name):
    """Returns a published file of a collection by name.

    Raises a `ValueError` if the collection does not list the name and has no naming rule that the
    name follows.
    """
    listed = [row for row in rows() if row.collection == collection]
    if found := [row for row in listed if row.name == name]:
        return found[0]
    rules = [family.rules[collection] for family in FAMILIES if collection in family.rules]
    for _, parse in rules:
        if row := parse(name):
            return row
    known = f"be one of {', '.join(row.name for row in listed)}"
    if rules:
        known = f"follow the rule {rules[0][0]}"
    raise ValueError(f"The name of a file in {collection!r} must {known}. Received: {name!r}")


def known_names(sizes):
    """Returns a sentence that lists the published weights of a size, for error messages."""
    collections = dict.fromkeys(row.collection for row in rows() if row.model in sizes)
    if not collections:
        known = ", ".join(dict.fromkeys(row.model for row in rows()))
        return (
            f"Weights are published for {known}, but not for this model. Use a path, a URL or a "
            "Hub repository, or train from random weights (--config.weights=)."
        )
    rules = dict.fromkeys(
        rule for family in FAMILIES for rule in family.rules if family.sizes.keys() & set(sizes)
    )
    names = [*collections, *(f"{collection}:<file name>" for collection in rules)]
    return (
        f"The published weights of {sizes[0]} are {', '.join(names)}; a path, a URL or a Hub "
        "repository also works."
    )


def collection_of(size, *preferred):
    """Returns the first collection with files for a size, or "".

    Collections in `preferred` come first.
    """
    known = list(dict.fromkeys(row.collection for row in rows() if row.model == size))
    return next((name for name in (*preferred, *known) if name in known), "")


def is_name(source):
    """Returns whether a string names a collection, or a file as in "augreg:<file name>"."""
    collection, _, name = os.fspath(source).partition(":")
    listed = {row.collection for row in rows()}
    with_rule = {rule for family in FAMILIES for rule in family.rules}
    return collection in (listed | with_rule) and "/" not in name
