"""Writes the weights of a model in the layout of the published files."""

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
    """Writes the weights of a model as an .npz file like the published ones, or as a folder for another library.

    `vit_jax` and timm can read the .npz file; `load` restores every number bit for bit. `keras_vit.from_pretrained`
    rebuilds the model from the comment of the archive, which other readers ignore. Parts that only big_vision has (a
    MAP head) get big_vision's names; a class token without a position gets one of zeros.

    Args:
        model: a built model of `keras_vit.VisionTransformer`, `keras_vit.BiTResNet` or their variants.
        path: a local path that ends in ".npz"; an existing file is replaced when the new one is complete. For formats
            other than "vit_jax", a folder, whose `model.safetensors` and `config.json` are replaced.
        format: "vit_jax", "timm" or "huggingface". Load such folders with `timm.create_model("local-dir:PATH",
            pretrained=True)`, or with `from_pretrained(PATH)` of the transformers class in the `config.json`.

    Raises:
        ValueError: the path is invalid or cannot be written, or the format does not support a part of the model.
    """
    path = os.fspath(path)
    if format == "vit_jax" and not path.endswith(".npz"):
        raise ValueError(f'The path of a checkpoint must end in ".npz". Received: path={path!r}')
    if files.is_remote(path):
        raise ValueError(f"The path of a checkpoint must be local. Received: path={path!r}")
    if any("lora_kernel" in variable.path for variable in model.variables):
        raise ValueError(
            "This layout does not support LoRA adapters. Save the model as .keras, which merges them into the kernels, "
            f"then load it and save it here. Received: model={model.name!r}"
        )
    shapes, variables = names.canonical_shapes(model), names.canonical_variables(model)
    if names.first_kernel(shapes) is None:
        raise ValueError(
            "Only models of keras_vit with their original layer names can be saved as a checkpoint. "
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
    """Returns what the layout does not show about a model, for the comment of the archive."""
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
    """Returns `(name, array)` as in the published files."""
    num_patches = math.prod(getattr(model, "grid", (0, 0)))
    if name == names.POSITIONS and names.CLASS_TOKEN in shapes and array.shape[1] == num_patches:
        array = np.concatenate([np.zeros_like(array[:, :1]), array], axis=1)
    return names.to_published(name, array, shapes)
