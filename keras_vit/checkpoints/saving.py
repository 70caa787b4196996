"""Saves the weights of a model in the layout of the published files or of another library."""

import json
import math
import os
import zipfile
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit import files
from keras_vit.checkpoints import names
from keras_vit.checkpoints.formats import COMMENT
from keras_vit.checkpoints.writing import write_folder
from keras_vit.preprocessing import Preprocessing

_TRAINING_ONLY = (
    *("dropout", "attention_dropout", "stochastic_depth", "remat", "head_bias", "masking_rate"),
    "classifier_activation",
)


def save(
    model: keras.Model,
    path: str | os.PathLike,
    format: str = "vit_jax",
    class_names: Sequence[str] | None = None,
) -> None:
    """Saves a model's weights as an .npz file in the published layout, or as a folder for another library.

    `vit_jax` and timm can read the .npz file, and `load` restores every value bit for bit. `keras_vit.from_pretrained`
    rebuilds the model from the zip comment, which other readers ignore. A MAP head has big_vision's array names. If
    the class token has no position embedding, the file contains zeros for it.

    Args:
        model: a built model of `keras_vit.VisionTransformer`, `keras_vit.BiTResNet` or their variants.
        path: a local path that ends in ".npz"; an existing file is replaced atomically. For formats other than
            "vit_jax", a folder, in which `model.safetensors` and `config.json` are replaced.
        format: "vit_jax", "timm" or "huggingface". To load the folder, call `timm.create_model("local-dir:PATH",
            pretrained=True)`, or `from_pretrained(PATH)` of the transformers class that `config.json` names.
        class_names: one name per class, to store in the config.json of a folder; `find_class_names` reads the names.

    Raises:
        ValueError: the path is invalid or cannot be written, the format does not support a part of the model, or the
            number of class names differs from the number of classes.
    """
    path = os.fspath(path)
    if format == "vit_jax" and not path.endswith(".npz"):
        raise ValueError(f'`path` must end in ".npz". Received: path={path!r}')
    if files.is_remote(path):
        raise ValueError(f"`path` must be local. Received: path={path!r}")
    if class_names is not None:
        class_names = _checked_names(class_names, model, format)
    if any("lora_kernel" in variable.path for variable in model.variables):
        raise ValueError(
            "Checkpoints do not support LoRA adapters. Save the model as .keras, which merges them into the kernels, "
            f"load that file, and save the loaded model. Received: model={model.name!r}"
        )
    shapes, variables = names.canonical_shapes(model), names.canonical_variables(model)
    if names.first_kernel(shapes) is None:
        raise ValueError(
            "Only keras_vit models with their original layer names can be saved as a checkpoint. "
            f"Received: model={model.name!r}"
        )
    arrays = {n: np.asarray(v).astype(np.float32).reshape(shapes[n]) for n, v in variables.items()}
    if format != "vit_jax":
        try:
            write_folder(model, path, format, arrays, class_names)
        except OSError as error:
            raise ValueError(f"The folder cannot be written ({error}). Received: path={path!r}") from error
        return
    try:
        with files.atomic_path(path) as part, zipfile.ZipFile(part, "w", allowZip64=True) as archive:
            for name, array in arrays.items():
                name, array = _to_published(name, array, model, shapes)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
            archive.comment = (COMMENT + json.dumps(_facts(model))).encode()
    except OSError as error:
        raise ValueError(f"The checkpoint cannot be written ({error}). Received: path={path!r}") from error


def _checked_names(class_names, model, format):
    """Returns class names as a list of strings, or raises a `ValueError` if they do not fit the model and format."""
    if format == "vit_jax":
        raise ValueError("`class_names` requires format='timm' or 'huggingface'. Received: format='vit_jax'")
    arguments, class_names = getattr(model, "arguments", {}), list(map(str, class_names))
    classes = arguments.get("classes") if arguments.get("include_top") else 0
    if len(class_names) != classes:
        raise ValueError(
            f"`class_names` must have one name for each of {classes} classes. Received: {len(class_names)} "
            f"class_names, {', '.join(map(repr, class_names[:3]))}, ..."
        )
    return class_names


def _facts(model):
    """Returns the facts about a model that its arrays do not determine, for the zip comment."""
    arguments = {name: value for name, value in getattr(model, "arguments", {}).items() if name not in _TRAINING_ONLY}
    arguments = {n: v for n, v in arguments.items() if isinstance(v, bool | int | float | str | tuple | dict | None)}
    preprocessing = getattr(model, "preprocessing", None)
    is_default = preprocessing is None or preprocessing == Preprocessing().for_channels(preprocessing.channels)
    facts = {
        "constructor": type(model).__name__ if arguments else None,
        "arguments": arguments or None,
        "grid": getattr(model, "grid", None),
        "preprocessing": None if is_default else preprocessing.to_config(),
    }
    activation = getattr(getattr(model, "input_preprocessing", None), "logits_activation", "softmax")
    if activation != "softmax":
        facts["logits_activation"] = activation
    return {name: value for name, value in facts.items() if value is not None}


def _to_published(name, array, model, shapes):
    """Returns a name and array as the published files store them."""
    num_patches = math.prod(getattr(model, "grid", (0, 0)))
    if name == names.POSITIONS and names.CLASS_TOKEN in shapes and array.shape[1] == num_patches:
        array = np.concatenate([np.zeros_like(array[:, :1]), array], axis=1)
    return names.to_published(name, array, shapes)
