"""Saves the weights of a model, as an .npz file or as a folder for another library."""

import json
import logging
import math
import os
import zipfile
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit import files
from keras_vit.checkpoints import names, registry
from keras_vit.checkpoints.metadata import COMMENT
from keras_vit.checkpoints.writing import NOT_STORED, write_folder

# Types of arguments that the zip comment stores; JSON has no values for others, such as functions.
_STORED = bool | int | float | str | tuple | list | dict | np.generic | None

log = logging.getLogger("keras_vit")


def save(
    model: keras.Model,
    path: str | os.PathLike,
    format: str = "vit_jax",
    class_names: Sequence[str] | None = None,
) -> None:
    """Saves a model's weights as an .npz file in the published layout, or as a folder for another
    library.

    `load` restores every value of the .npz file bit for bit. `vit_jax` and timm can read the file
    if they implement the architecture. `keras_vit.from_pretrained` rebuilds the model from the zip
    comment, which other readers ignore. The arrays of attention pooling have big_vision's names. If
    the class token has no position embedding, the file contains zeros for this embedding.

    No format stores `classifier_activation`; a loaded model returns logits. A folder gets the
    epsilon of the library. A different epsilon is accepted only if both are at most 1e-5. Warnings
    are logged for both.

    Args:
        model: a built model of keras_vit.
        path: a local path that ends in ".npz"; an existing file is replaced atomically. For formats
            other than "vit_jax", the path of a folder; its `model.safetensors` and `config.json`
            are replaced, and for "huggingface" also its `preprocessor_config.json`.
        format: "vit_jax", "timm" or "huggingface". To load the folder, call
            `timm.create_model("local-dir:PATH", pretrained=True)`, or `from_pretrained(PATH)` of
            the transformers class that `config.json` names.
        class_names: one name per class, stored in the folder's config.json, from which
            `find_class_names` reads them. Requires the format "timm" or "huggingface".

    Raises:
        ValueError: the path is invalid or cannot be written, the model is not a keras_vit model or
            has LoRA adapters, the format is unknown or does not support the model, or `class_names`
            does not fit the model or the format.
    """
    if (write := registry.WRITERS.get(type(model))) is not None:
        if class_names is not None:
            raise ValueError(
                f"`class_names` must be None for a {type(model).__name__}. Received: "
                f"class_names={class_names!r}"
            )
        return write(model, path, format)
    path = os.fspath(path)
    if format == "vit_jax" and not path.endswith(".npz"):
        raise ValueError(f'`path` must end in ".npz". Received: path={path!r}')
    if files.is_remote(path):
        raise ValueError(f"`path` must be local. Received: path={path!r}")
    arrays = _arrays_of(model)
    if class_names is not None:
        _check_class_names(class_names, model, format)
    activation = _activation_of(model)
    if activation is not None:
        log.warning(
            "The saved model will return logits, without classifier_activation=%r", activation
        )
    with files.explained_errors(
        "The checkpoint cannot be written", "Choose another path.", f"path={path!r}"
    ):
        if format != "vit_jax":
            return write_folder(model, path, format, arrays, class_names, _logits_activation(model))
        # The dialect of the .npz files of these models
        dialect = next(
            dialect
            for dialect in registry.dialects()
            if dialect.layout == "keras"
            and dialect.fits is None
            and dialect.marks(map(dialect.name_in_file, arrays))
        )
        arrays = {
            dialect.name_in_file(name): dialect.shape_in_file(name, array)
            for name, array in _with_class_rows(arrays, model).items()
        }
        with files.atomic_path(path) as part:
            np.savez(part, **arrays)
            with zipfile.ZipFile(part, "a") as archive:
                archive.comment = (
                    COMMENT + json.dumps(_facts(model), default=np.generic.item)
                ).encode()


def _arrays_of(model):
    """Returns the weights of a model by canonical name, or raises a `ValueError`."""
    if any("lora_kernel" in variable.path for variable in model.variables):
        raise ValueError(
            "Checkpoints do not support LoRA adapters. Save the model as .keras, which merges "
            "them into the kernels, load that file, and save the loaded model. Received: "
            f"model={model.name!r}"
        )
    shapes = names.canonical_shapes(model)
    variables = names.canonical_variables(model)
    if names.first_kernel(shapes) is None:
        raise ValueError(
            "Only keras_vit models with their original layer names can be saved as a checkpoint. "
            f"Received: model={model.name!r}"
        )
    return {
        name: np.asarray(variable).astype(np.float32).reshape(shapes[name])
        for name, variable in variables.items()
    }


def _with_class_rows(arrays, model):
    """Returns the arrays, with zeros for class tokens that have no position embedding."""
    positions = arrays.get(names.POSITIONS)
    num_patches = math.prod(getattr(model, "grid", (0, 0)))
    if names.CLASS_TOKEN not in arrays or positions is None or positions.shape[1] != num_patches:
        return arrays
    rows = np.zeros((1, names.count_class_tokens(arrays), positions.shape[2]), np.float32)
    return {**arrays, names.POSITIONS: np.concatenate([rows, positions], axis=1)}


def _arguments_of(model):
    """Returns a model's arguments, which a model from a file of version 0.1.0 does not know."""
    return getattr(model, "arguments", {})


def _check_class_names(class_names, model, format):
    """Raises a `ValueError` if class names do not fit the model and format."""
    if format == "vit_jax":
        raise ValueError(
            "`class_names` requires format='timm' or 'huggingface'. Received: format='vit_jax'"
        )
    arguments = _arguments_of(model)
    classes = arguments["classes"] if arguments.get("include_top") else 0
    if len(class_names) != classes:
        raise ValueError(
            f"`class_names` must have {classes} names, one for each class of the head. Received: "
            f"{len(class_names)} class_names, starting with {class_names[:3]}"
        )


def _activation_of(model):
    """Returns the name of the activation of the head, or None."""
    activation = _arguments_of(model).get("classifier_activation")
    name = keras.activations.serialize(keras.activations.get(activation))
    return None if name == "linear" else name


def _logits_activation(model):
    """Returns the activation that turns the logits of the saved model into probabilities."""
    activation = _activation_of(model)
    if activation in ("softmax", "sigmoid"):
        return activation
    recorder = getattr(model, "input_preprocessing", None)
    return getattr(recorder, "logits_activation", "softmax")


def _facts(model):
    """Returns the content of the zip comment, which describes the model."""
    arguments = {
        name: value
        for name, value in _arguments_of(model).items()
        if name not in NOT_STORED and isinstance(value, _STORED)
    }
    preprocessing = getattr(model, "preprocessing", None)
    facts = {
        "constructor": getattr(model, "saved_as", type(model).__name__) if arguments else None,
        "arguments": arguments or None,
        "grid": getattr(model, "grid", None),
        "preprocessing": preprocessing and preprocessing.to_config(),
        "logits_activation": _logits_activation(model),
    }
    return {name: value for name, value in facts.items() if value is not None}
