"""Folders of versions, as a server watches them: `<base_dir>/<integer>`, of which the largest is served."""

import errno
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_vit import files
from keras_vit.models import load_keras_file
from keras_vit.models.any_model import logits_activation_of, weights_digest

MARKER = "saved_model.pb"  # a folder without it is not a SavedModel
MODEL = "assets.extra/model.keras"
CARD = "assets.extra/model_card.json"
"""Path of the model card inside a version of an export."""
_CARD_KEYS = ("model", "class_names", "activation", "preprocessing", "training", "metrics")


def load(path: str | os.PathLike) -> keras.Model:
    """Loads the model of an export from the folder of a version, to be trained further; compiled if that one was.

    Raises:
        ValueError: the folder is not an export, or its model is damaged.
    """
    source = os.path.join(os.fspath(path), MODEL)
    if not files.exists(source):
        raise ValueError(f"The folder of an export holds {MODEL}, and this one does not. Received: path={path!r}")
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "model.keras")
        files.copy(source, local)
        return load_keras_file(local)


def load_card(path: str | os.PathLike) -> dict[str, Any]:
    """Loads the model card of an export, a dict; arguments and errors as of `load`."""
    card = files.read_json(os.path.join(os.fspath(path), CARD))
    if card is None:
        raise ValueError(f"The folder of an export holds {CARD}, and this one does not. Received: path={path!r}")
    if not isinstance(card, dict) or not card.keys() >= set(_CARD_KEYS):
        raise ValueError(f"The card of an export must have {', '.join(_CARD_KEYS)}. Received: {CARD} of path={path!r}")
    return card


def has_model(path: str | os.PathLike, model: keras.Model, class_names: Sequence[str]) -> bool:
    """Returns whether an export has the weights of a model, its activation and these class names.

    Args:
        path: the folder of a version, any path of `tf.io.gfile`.
        model: a built `keras.Model`.
        class_names: the name of each class, in order.
    """
    try:
        card = load_card(path)
    except ValueError:
        return False
    same_names = card["class_names"] == list(class_names) and card["activation"] == logits_activation_of(model)
    return same_names and card.get("weights_sha256") == weights_digest(model)


def newest_version(base_dir: str | os.PathLike) -> str | None:
    """Returns the path of the largest version in a folder, None if there is none.

    Args:
        base_dir: the folder of the versions, any path of `tf.io.gfile`.
    """
    number = next_version(base_dir) - 1
    return os.path.join(str(base_dir), str(number)) if number else None


def next_version(base_dir):
    """Returns the number after the largest version, 1 if there is none."""
    names = files.list_dir(base_dir) if files.exists(base_dir) else []
    return 1 + max((int(name) for name in names if name.isdecimal()), default=0)


def check_version(base_dir, version):
    """Raises a `ValueError` if `version` exists."""
    if version is not None and files.exists(os.path.join(base_dir, str(version))):
        raise ValueError(f"An exported version is never overwritten. Received: {base_dir}/{version}, which exists")


def staging_dir(base_dir, kept_after=()):
    """Makes a local folder to write a version in; its name is not a number, which a server would serve unfinished."""
    if files.is_remote(base_dir):
        return files.staging_dir(None, kept_after)
    with files.explained_errors("The folder of the versions cannot be made", "It must be writable.", base_dir):
        os.makedirs(base_dir, exist_ok=True)
    return files.staging_dir(base_dir, kept_after)


def publish(folder, base_dir, version):
    """Gives a complete folder its version number, None for the next one, and returns its path."""
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
            # Another export published this number in between: take the next one.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise


def _copy_with_marker_last(folder, target):
    sources = [path for path in Path(folder).rglob("*") if path.is_file()]
    for source in sorted(sources, key=lambda path: (path.name == MARKER, path)):
        path = f"{target}/{source.relative_to(folder)}"
        files.make_dirs(os.path.dirname(path))
        # Not `files.copy`, which would rename each file: on an object store a second copy, and the marker is enough.
        tf.io.gfile.copy(str(source), path)
