"""From what `weights=` is given to a file on this machine."""

import os
import re
import typing

from keras_vit.checkpoints import downloading, published
from keras_vit.checkpoints.architecture import variant


class Source(typing.NamedTuple):
    """A checkpoint that is here: its path, where in it the weights are, and its row if it is a published one."""

    path: str
    subtree: str
    row: published.Published | None


def is_url(source):
    return re.match(r"(https?|gs)://", str(source)) is not None


def _is_path(source):
    # A folder called "sam" beside the program does not hide the weights of that name.
    return os.path.exists(source) and not published.is_name(os.fspath(source))


def find_published(source, input_shape=(None, None, None), **numbers):
    """The row of published weights that `weights=` means for a model that is yet to be built, or None.

    Args:
        source: a name, a path or a URL; only a name has a row.
        input_shape: of the model's images.
        **numbers: `patch_size`, `num_layers`, `hidden_size` and `resnet_blocks`, or `depth` and `width_factor`.

    Raises:
        ValueError: the name is known, but not for such a model.
    """
    if is_url(source) or _is_path(source):
        return None
    blocks = numbers.get("resnet_blocks")
    numbers["resnet_blocks"] = tuple(blocks) if isinstance(blocks, list) else blocks
    return published.find(source, variant(numbers), input_shape[0])


def locate(source, architecture, resolution):
    """The `Source` of a name, a path or a URL; downloads it where it must.

    Args:
        source: what `checkpoints.load` was given.
        architecture: of the model that it is for, None where it is for no model yet.
        resolution: side of that model's images, in pixels, or None.

    Raises:
        ValueError: there is nothing of that name.
        ConnectionError: it could not be downloaded.
    """
    text = os.fspath(source)
    if _is_path(text):
        return Source(text, "", None)
    if match := re.fullmatch(r"(.*\.npz):([\w/]+)", text):
        whole = locate(match[1], architecture, resolution)
        return whole._replace(subtree=match[2])
    if is_url(text):
        return Source(downloading.fetch(text), "", None)
    if os.path.sep in text or text.endswith((".npz", ".safetensors")):
        raise ValueError(f"There is no such file. Received: {text}")
    model = None if architecture is None else variant(architecture)
    row = published.find(text, model, resolution)
    if row is None:
        names = "" if architecture is None else " " + published.known_names(model)
        raise ValueError(f"There is no such file, and no published weights of that name.{names} Received: {text}")
    return Source(downloading.fetch(row.url, row.size), "", row)
