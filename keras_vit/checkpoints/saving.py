"""Writing a model's weights in the layout of the published files."""

import json
import math
import os
import zipfile

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


def save(model: keras.Model, path: str | os.PathLike, format: str = "vit_jax") -> None:
    """Writes a model's weights as an .npz file in the layout of the published ones, or as another library's folder.

    `vit_jax` and timm read the .npz; `load` restores every number bit for bit. The archive's comment, which other
    readers ignore, holds what the layout cannot say, and `keras_vit.from_pretrained` rebuilds the model from it. Parts
    that only big_vision has (a MAP head) get big_vision's names; a class token without a position gets one of zeros.

    Args:
        model: a built model of `keras_vit.VisionTransformer`, `keras_vit.BiTResNet` or their variants.
        path: a local path, ending in ".npz"; an existing file is replaced once the new one is complete. For another
            format than "vit_jax" a folder, whose `model.safetensors` and `config.json` are replaced.
        format: "vit_jax", "timm" or "huggingface". `timm.create_model("local-dir:PATH", pretrained=True)` and
            `from_pretrained(PATH)` of the class of transformers that the `config.json` names load such folders.

    Raises:
        ValueError: the path is not as above or cannot be written, or the model has a part without a place.
    """
    path = os.fspath(path)
    if format == "vit_jax" and not path.endswith(".npz"):
        raise ValueError(f'The path of a checkpoint must end in ".npz". Received: path={path!r}')
    if files.is_remote(path):
        raise ValueError(f"The checkpoint cannot be written: its path must be a local one. Received: path={path!r}")
    if any("lora_kernel" in variable.path for variable in model.variables):
        raise ValueError(
            "Adapters of LoRA have no place in this layout; saving the model as .keras adds them to the kernels, and "
            f"what is loaded from there can be saved here. Received: model={model.name!r}"
        )
    shapes, variables = names.canonical_shapes(model), names.canonical_variables(model)
    if names.first_kernel(shapes) is None:
        raise ValueError(
            "Only models of keras_vit, with their layer names, can be saved as a checkpoint. "
            f"Received: model={model.name!r}"
        )
    arrays = {n: np.asarray(v).astype(np.float32).reshape(shapes[n]) for n, v in variables.items()}
    if format != "vit_jax":
        write_folder(model, path, format, arrays)
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


def _facts(model):
    """What the layout does not say about a model, for the comment of the archive."""
    arguments = {}
    for name, value in getattr(model, "arguments", {}).items():
        if name not in _TRAINING_ONLY and isinstance(value, bool | int | float | str | tuple | dict | None):
            arguments[name] = value
    facts = {
        "constructor": type(model).__name__ if arguments else None,
        "arguments": arguments or None,
        "grid": getattr(model, "grid", None),
        "preprocessing": _preprocessing_if_unusual(model),
    }
    activation = getattr(getattr(model, "input_preprocessing", None), "logits_activation", "softmax")
    if activation != "softmax":
        facts["logits_activation"] = activation
    return {name: value for name, value in facts.items() if value is not None}


def _to_published(name, array, model, shapes):
    """`(name, array)` as the published files have them, for a name and an array of `vit_jax`."""
    num_patches = math.prod(getattr(model, "grid", (0, 0)))
    if name == names.POSITIONS and names.CLASS_TOKEN in shapes and array.shape[1] == num_patches:
        array = np.concatenate([np.zeros_like(array[:, :1]), array], axis=1)
    return names.to_published(name, array, shapes)


def _preprocessing_if_unusual(model):
    """The fields of a model's `Preprocessing`, if they are not the defaults; else None."""
    preprocessing = getattr(model, "preprocessing", None)
    if preprocessing is None:
        return None
    usual = Preprocessing().for_channels(preprocessing.channels)
    return None if preprocessing == usual else preprocessing.to_config()
