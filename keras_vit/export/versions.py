"""Manages folders of versions, `<base_dir>/<integer>`; a server serves the largest version."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_vit import files
from keras_vit.layers.validation import check_positive_int
from keras_vit.models import load_keras_file
from keras_vit.models.any_model import logits_activation_of, weights_digest

MARKER = "saved_model.pb"  # a folder without it is not a SavedModel
MODEL = "assets.extra/model.keras"
CARD = "assets.extra/model_card.json"
"""The path of the model card inside a version of an export."""


def load(path: str | os.PathLike) -> keras.Model:
    """Loads the model of an export.

    Args:
        path: folder of a version.

    Raises:
        ValueError: the folder is not an export, or the file of the model is damaged.
    """
    source = os.path.join(os.fspath(path), MODEL)
    if not files.exists(source):
        raise ValueError(f"The folder of an export must contain {MODEL}. Received: path={path!r}")
    return load_keras_file(source)


def load_card(path: str | os.PathLike) -> dict[str, Any]:
    """Loads the model card of an export.

    Args:
        path: folder of a version.

    Raises:
        ValueError: the folder is not an export, or its card is damaged.
    """
    card = files.read_json(os.path.join(os.fspath(path), CARD))
    if card is None:
        raise ValueError(f"The folder of an export must contain {CARD}. Received: path={path!r}")
    return card


def has_model(path: str | os.PathLike, model: keras.Model, class_names: Sequence[str]) -> bool:
    """Returns whether an export is complete and has the weights and activation of `model`, and
    these class names.

    Args:
        path: folder of a version, any path of `tf.io.gfile`.
        model: a built `keras.Model`.
        class_names: name of each class, in order.
    """
    if not files.exists(os.path.join(os.fspath(path), MARKER)):  # the upload was interrupted
        return False
    try:
        card = load_card(path)
    except ValueError:
        return False
    stored = [card.get(name) for name in ("class_names", "activation", "weights_sha256")]
    return stored == [list(class_names), logits_activation_of(model), weights_digest(model)]


def newest_version(base_dir: str | os.PathLike) -> str | None:
    """Returns the path of the largest version in a folder, or None if the folder contains no
    version.

    Args:
        base_dir: folder of the versions, any path of `tf.io.gfile`.
    """
    newest = max(_versions(base_dir), key=int, default=None)
    return newest and os.path.join(str(base_dir), newest)


def next_version(base_dir):
    """Returns the number after the largest version, or 1 if no version exists."""
    return 1 + max(map(int, _versions(base_dir)), default=0)


def _versions(base_dir):
    """Returns the names of the versions in a folder, which may begin with zeros."""
    names = files.list_dir(base_dir) if files.exists(base_dir) else []
    return [name for name in names if name.isdecimal()]


def check_version(base_dir, version):
    """Raises a `ValueError` if `version` is not None and no positive integer, or exists."""
    if version is None:
        return
    check_positive_int("version", version)
    if files.exists(os.path.join(base_dir, str(version))):
        raise ValueError(
            "`version` must be new; versions are never overwritten. Received: "
            f"{base_dir}/{version}, which exists"
        )


def staging_dir(base_dir, kept_after=()):
    """Returns a context manager for a local staging folder. Servers ignore the folder: its name is
    not a number."""
    if files.is_remote(base_dir):
        return files.staging_dir(None, kept_after)
    with files.explained_errors(
        "The folder of the versions cannot be created", "It must be writable.", base_dir
    ):
        os.makedirs(base_dir, exist_ok=True)
    return files.staging_dir(base_dir, kept_after)


def publish(folder, base_dir, version):
    """Publishes a complete folder as `version`, or as the next number if `version` is None; returns
    the new path."""
    while True:
        target = os.path.join(base_dir, str(version or next_version(base_dir)))
        check_version(base_dir, version)
        if files.is_remote(base_dir):
            _copy_with_marker_last(folder, target)
            return target
        try:
            os.rename(folder, target)
            return target
        except OSError as error:
            # Another export published this number in the meantime. Check again or, without
            # `version`, try the next one.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise


def _copy_with_marker_last(folder, target):
    sources = [path for path in Path(folder).rglob("*") if path.is_file()]
    for source in sorted(sources, key=lambda path: (path.name == MARKER, path)):
        path = f"{target}/{source.relative_to(folder)}"
        files.make_dirs(os.path.dirname(path))
        # `files.copy` renames a temporary file, which object stores implement as a second copy.
        # Writing the marker last makes the rename unnecessary.
        tf.io.gfile.copy(str(source), path)
