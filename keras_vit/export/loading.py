"""From an export back to a model."""

import os
import tempfile
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit import files
from keras_vit.export.assets import MODEL
from keras_vit.export.model_card import CARD
from keras_vit.models import load_keras_file
from keras_vit.models.digest import weights_digest
from keras_vit.models.shapes import logits_activation_of

_KEYS = ("model", "class_names", "activation", "preprocessing", "training", "metrics")  # of a card


def load(path: str | os.PathLike) -> keras.Model:
    """The model of an export as it was when it was exported, to be trained further.

    Args:
        path: the folder of a version, any path of `tf.io.gfile`.

    Returns:
        A `keras.Model`; compiled if the exported one was.

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
    """The model card of an export, a dict; arguments and errors as of `load`."""
    card = files.read_json(os.path.join(os.fspath(path), CARD))
    if card is None:
        raise ValueError(f"The folder of an export holds {CARD}, and this one does not. Received: path={path!r}")
    missing = _KEYS if not isinstance(card, dict) else [key for key in _KEYS if key not in card]
    if missing:
        raise ValueError(f"The card of an export must have {', '.join(missing)}. Received: {CARD} of path={path!r}")
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
    expected = {
        "weights_sha256": weights_digest(model),
        "activation": logits_activation_of(model),
        "class_names": list(class_names),
    }
    return all(card.get(key) == value for key, value in expected.items())
