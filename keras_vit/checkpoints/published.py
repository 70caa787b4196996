"""Published weights of all families, by name."""

import os
import re
import typing
from typing import Any

from keras_vit.checkpoints import downloading, hub, registry
from keras_vit.checkpoints.registry import FAMILIES, PublishedWeights

_PYTORCH = (".pth", ".pt", ".bin", ".ckpt")


class ResolvedCheckpoint(typing.NamedTuple):
    """A local checkpoint: its path, the subtree of its weights, and its row of published weights."""

    path: str
    subtree: str = ""
    published: PublishedWeights | None = None


def rows() -> list[PublishedWeights]:
    """Returns every file that the families list."""
    return [row for family in FAMILIES for row in family.published]


def find_published(
    source: str | os.PathLike, input_shape: tuple[int | None, ...] = (None, None, None), **sizes: Any
) -> PublishedWeights | None:
    """Returns the row of published weights for a name and a model that is not built yet; None for paths and URLs.

    Args:
        source: a name, a path or a URL; only names have a row.
        input_shape: `(height, width, channels)` of the model's images; the height selects among files of one model.
        **sizes: arguments of the model, such as `patch_size`, `num_layers`, `hidden_size` and `resnet_blocks`.

    Raises:
        ValueError: the name has no file for this model.
    """
    return find(source, registry.find_sizes(sizes), input_shape[0])


def fetch(source: str | os.PathLike, input_shape: tuple[int | None, ...] = (None, None, None), **sizes: Any) -> str:
    """Returns the local file for a name, a path or a URL; downloads it if needed. Arguments: see `find_published`.

    Raises:
        ValueError: there is no such file or name, or the name has no file for this model.
        ConnectionError: the file could not be downloaded.
    """
    return resolve(source, registry.find_sizes(sizes), input_shape[0]).path


def resolve(source, size=(), resolution=None):
    """Returns the `ResolvedCheckpoint` of a name, a path or a URL; `size` and `resolution` are as for `find`."""
    text = os.fspath(source)
    if text.endswith(_PYTORCH):
        _refuse_pytorch(text)
    if not is_name(text) and os.path.exists(text):
        return ResolvedCheckpoint(_file_in(text) if os.path.isdir(text) else text)
    if match := re.fullmatch(r"(.*\.npz):([\w/]+)", text):
        return resolve(match[1], size, resolution)._replace(subtree=match[2])
    if re.match(r"(https?|gs)://", text):
        return ResolvedCheckpoint(downloading.fetch(text))
    if hub.is_repository(text) and not text.endswith(".safetensors"):
        return ResolvedCheckpoint(_file_in(hub.fetch(text)), published=find(text, size))
    if os.path.sep in text or text.endswith((".npz", ".safetensors")):
        raise ValueError(f"There is no such file. Received: {text}")
    row = find(text, size, resolution)
    if row is None:
        raise ValueError(
            f"There is no such file, and no published weights have this name. {known_names(size)} Received: {text}"
        )
    if row.url.startswith(hub.URL):
        return ResolvedCheckpoint(_file_in(hub.fetch(row.url.removeprefix(hub.URL))), published=row)
    return ResolvedCheckpoint(downloading.fetch(row.url), published=row)


def _refuse_pytorch(path):
    raise ValueError(
        "PyTorch files are not read, because they can run code. Save the weights from PyTorch as safetensors, "
        f"safetensors.torch.save_file(state_dict, 'model.safetensors'). Received: {path}"
    )


def _file_in(folder):
    """Returns the weights in a folder in Hugging Face's format: a file, or the index of several."""
    names = os.listdir(folder)
    files = [name for name in names if name.endswith(".safetensors.index.json")]
    files = files or [name for name in names if name.endswith(".safetensors")]
    if not files and (pickled := [name for name in names if name.endswith(_PYTORCH)]):
        _refuse_pytorch(os.path.join(folder, pickled[0]))
    if len(files) != 1:
        raise ValueError(
            "A folder of weights must contain one .safetensors file, or the index of several. "
            f"Received: {folder} with {len(files)} of them"
        )
    return os.path.join(folder, files[0])


def find(source, size=(), resolution=None):
    """Returns the row for a name and the names of a size: the one with the resolution, or else the first; or None."""
    size = [size] if isinstance(size, str) else size or []
    if not is_name(os.fspath(source)):
        url = f"{hub.URL}{os.fspath(source)}"
        return next((row for row in rows() if row.url == url and row.model in size), None)
    collection, _, name = os.fspath(source).removesuffix(".npz").partition(":")
    if name:
        row = find_file(collection, name)
        if row.model not in size:
            raise ValueError(
                f"The file is a {row.model}, but the model is {' or '.join(size) or 'not of a published size'}. "
                f"Received: weights={source!r}"
            )
        return row
    found = [row for row in rows() if row.collection == collection and row.model in size]
    if not found:
        raise ValueError(f"{known_names(size)} Received: weights={source!r}")
    return next((row for row in found if row.resolution == resolution), found[0])


def find_file(collection, name):
    """Returns the row of a file in a collection, listed or following the collection's rule; else a `ValueError`."""
    listed = [row for row in rows() if row.collection == collection]
    if found := [row for row in listed if row.name == name]:
        return found[0]
    rules = [family.rules[collection] for family in FAMILIES if collection in family.rules]
    for _, parse in rules:
        if row := parse(name):
            return row
    known = f"follow the rule {rules[0][0]}" if rules else f"be one of {', '.join(row.name for row in listed)}"
    raise ValueError(f"The name of a file in {collection!r} must {known}. Received: {name!r}")


def known_names(sizes):
    """Returns a sentence for messages that lists the published weights of a size."""
    sizes = [sizes] if isinstance(sizes, str) else sizes
    collections = dict.fromkeys(row.collection for row in rows() if row.model in sizes)
    if not collections:
        known = ", ".join(dict.fromkeys(row.model for row in rows()))
        return (
            f"Weights are published for {known}, but not for this model: use a path or a URL, or train without weights "
            "(--config.weights=)."
        )
    rules = dict.fromkeys(rule for family in FAMILIES for rule in family.rules if family.sizes.keys() & set(sizes))
    names = [*collections, *(f"{collection}:<file name>" for collection in rules)]
    return f"The published weights of {sizes[0]} are {', '.join(names)}; you can also use a path or a URL."


def collection_of(size, *preferred):
    """Returns the first collection with files of a size, preferred ones first, or "" if no collection has any."""
    known = list(dict.fromkeys(row.collection for row in rows() if row.model == size))
    return next((name for name in (*preferred, *known) if name in known), "")


def is_name(source):
    """Returns whether a string is a collection, or has the form of a file in one, such as "augreg:<file name>"."""
    collection, _, name = os.fspath(source).partition(":")
    known = {row.collection for row in rows()} | {rule for family in FAMILIES for rule in family.rules}
    return collection in known and "/" not in name
