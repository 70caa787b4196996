"""From a name, a path or a URL to a local file."""

import os
import re
import typing
from typing import Any

from keras_vit.architectures import find_vision_transformer
from keras_vit.checkpoints import downloading, published
from keras_vit.checkpoints.published import PublishedWeights


class ResolvedCheckpoint(typing.NamedTuple):
    """A checkpoint on this machine.

    Attributes:
        path: of the file.
        subtree: where in the file the weights are, such as "params/img", or "".
        published: its row in the table of published weights, or None.
    """

    path: str
    subtree: str = ""
    published: PublishedWeights | None = None


def find_published(
    source: str | os.PathLike, input_shape: tuple[int | None, ...] = (None, None, None), **sizes: Any
) -> PublishedWeights | None:
    """The row of published weights that a name means for a model that is not built yet.

    Args:
        source: a name, a path or a URL; only names have a row.
        input_shape: `(height, width, channels)` of the model's images. The height chooses among files of one model;
            the channels do not matter.
        **sizes: `patch_size`, `num_layers`, `hidden_size` and `resnet_blocks`, or `depth` and `width_factor`.

    Returns:
        A `PublishedWeights`, or None for a path or a URL.

    Raises:
        ValueError: the name is known, but not for such a model.
    """
    if _is_url(source) or _is_path(source):
        return None
    return published.find(source, size_name(sizes), input_shape[0])


def fetch(source: str | os.PathLike, input_shape: tuple[int | None, ...] = (None, None, None), **sizes: Any) -> str:
    """The local file of a name, a path or a URL, downloaded if necessary, for a model that is not built yet.

    Args:
        source, input_shape, sizes: as of `find_published`; further sizes are ignored.

    Raises:
        ValueError: there is no such file and no such name, or the name has no file for such a model.
        ConnectionError: it could not be downloaded.
    """
    return resolve(source, sizes, input_shape[0]).path


def resolve(source, architecture, resolution):
    """The local file of a name, a path or a URL; downloads it if necessary.

    Args:
        source: as `checkpoints.load` takes it.
        architecture: of the model that it is for, as `architecture_of` gives it; None if there is no model yet.
        resolution: height of that model's images in pixels, or None.

    Returns:
        A `ResolvedCheckpoint`.

    Raises:
        ValueError: there is no such file and no such name.
        ConnectionError: it could not be downloaded.
    """
    text = os.fspath(source)
    if text.endswith((".pth", ".pt", ".bin")):
        raise ValueError(
            "This is a PyTorch file, which is not read: it may run code. Save it in PyTorch as safetensors, "
            f"safetensors.torch.save_file(state_dict, 'model.safetensors'). Received: {text}"
        )
    if _is_path(text):
        return ResolvedCheckpoint(text)
    if match := re.fullmatch(r"(.*\.npz):([\w/]+)", text):
        return resolve(match[1], architecture, resolution)._replace(subtree=match[2])
    if _is_url(text):
        return ResolvedCheckpoint(downloading.fetch(text))
    if os.path.sep in text or text.endswith((".npz", ".safetensors")):
        raise ValueError(f"There is no such file. Received: {text}")
    model = None if architecture is None else size_name(architecture)
    row = published.find(text, model, resolution)
    if row is None:
        names = "" if architecture is None else " " + published.known_names(model)
        raise ValueError(f"There is no such file, and no published weights of that name.{names} Received: {text}")
    return ResolvedCheckpoint(downloading.fetch(row.url, row.size), published=row)


def size_name(architecture):
    """The name of the size in `keras_vit.architectures` that an architecture has, such as "ViT-B/16", or None.

    Args:
        architecture: a dict with `patch_size`, `num_layers`, `hidden_size` and `resnet_blocks`, or with `depth` and
            `width_factor`.
    """
    if "depth" in architecture:
        known = architecture["depth"] and architecture["width_factor"]
        return f"BiT-R{architecture['depth']}x{architecture['width_factor']}" if known else None
    numbers = {key: architecture[key] for key in ("patch_size", "num_layers", "hidden_size", "resnet_blocks")}
    if numbers["resnet_blocks"] is not None:
        numbers["resnet_blocks"] = tuple(numbers["resnet_blocks"])
    return find_vision_transformer(**numbers)


def _is_url(source):
    return re.match(r"(https?|gs)://", str(source)) is not None


def _is_path(source):
    # A folder called "sam" in the working directory does not hide the weights of that name.
    return os.path.exists(source) and not published.is_name(os.fspath(source))
