"""Writes both towers as a folder for transformers: `CLIPModel` or `SiglipModel`."""

import json
import os
import tempfile

import numpy as np

from keras_vit.checkpoints import names, registry
from keras_vit.checkpoints.dialects import text as dialects
from keras_vit.checkpoints.dialects.dialect import Folder
from keras_vit.checkpoints.saving import save
from keras_vit.families import towers  # noqa: F401, registers the towers
from keras_vit.models.two_towers import TwoTowers

_NAMES = {name: theirs for theirs, name in dialects.ACTIVATIONS.items()}
# The image towers of the two classes. Without the projection, transformers would add a random one.
_IMAGE_TOWERS = {"clip": "CLIPVisionModelWithProjection", "siglip": "SiglipVisionModel"}


def write(model: TwoTowers, path: str | os.PathLike, format: str = "huggingface") -> None:
    """Writes both towers, their config.json and the preprocessing as a folder.

    `checkpoints.save` calls this. The files of the tokenizer are not written.

    Raises:
        ValueError: the format is not "huggingface", or no class of transformers has the towers.
    """
    if format != "huggingface":
        raise ValueError(
            'Both towers can be saved with format="huggingface", or as a .keras file with '
            f"`model.save`. Received: format={format!r}"
        )
    kind = _kind_of(model)
    # `os.replace` needs both folders on one file system.
    parent = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        save(model.image, folder, format="huggingface")
        config_path = os.path.join(folder, "config.json")
        with open(config_path, encoding="utf-8") as file:
            vision = json.load(file)
        (image_tower,) = vision["architectures"]
        if image_tower != _IMAGE_TOWERS[kind]:
            raise ValueError(
                f"transformers has no model with the text tower of {kind} and the image tower "
                f"{image_tower}. Received: model={model.name!r}"
            )
        from safetensors.numpy import load_file, save_file

        weights_path = os.path.join(folder, "model.safetensors")
        tensors = {_image_name(name): array for name, array in load_file(weights_path).items()}
        tensors |= _text_tensors(model, kind) | _logits(model, kind)
        save_file(tensors, weights_path, {"format": "pt"})
        with open(config_path, "w", encoding="utf-8") as file:
            json.dump(_config(model, kind, vision), file, indent=2)
        os.makedirs(path, exist_ok=True)
        for name in os.listdir(folder):
            os.replace(os.path.join(folder, name), os.path.join(path, name))


def _kind_of(model):
    """Returns the class of transformers that has this text tower, "clip" or "siglip"."""
    arguments = model.text.arguments
    has_bias = arguments["projection_bias"]
    # In a config.json of CLIP, the end token 2 stands for the largest id.
    has_end_id = arguments["pool"] == "end" and arguments["end_id"] != 2
    takes_end = arguments["pool"] == "largest" or has_end_id
    if arguments["causal"] and takes_end and not has_bias and model.logit_bias is None:
        return "clip"
    if not arguments["causal"] and arguments["pool"] == "last" and has_bias:
        return "siglip"
    raise ValueError(
        "transformers has text towers that are causal, take the end token and project without a "
        "bias (CLIP), or are not causal, take the last token and project with a bias (SigLIP). "
        f"Received: {dict(arguments)}, logit_bias={model.logit_bias is not None}"
    )


def _image_name(name):
    """Returns the name of an image tower's tensor in the file of both towers."""
    is_whole = name.startswith(("vision_model.", "visual_projection."))
    return name if is_whole else f"vision_model.{name}"


def _text_tensors(model, kind):
    """Returns `{name in the file: array}` of the text tower."""
    variables = names.canonical_variables(model.text)
    arrays = {name: np.asarray(variable, "float32") for name, variable in variables.items()}
    dialect = dialects.CLIP if kind == "clip" else dialects.SIGLIP
    tensors, _ = dialect.write(arrays, model.text.arguments["num_layers"], Folder({}))
    return tensors


def _logits(model, kind):
    """Returns `{name in the file: array}` of the scale and bias of the logits."""
    scale = np.asarray(model.logit_scale, "float32")
    if kind == "clip":
        return {dialects.SCALE: scale.reshape(())}
    bias = np.asarray(0 if model.logit_bias is None else model.logit_bias, "float32")
    return {dialects.SCALE: scale.reshape(1), dialects.BIAS: bias.reshape(1)}


def _config(model, kind, vision):
    """Returns the config.json of both towers."""
    arguments = model.text.arguments
    text = {
        "model_type": f"{kind}_text_model",
        "vocab_size": arguments["vocabulary_size"],
        "max_position_embeddings": arguments["length"],
        "hidden_size": arguments["hidden_size"],
        "intermediate_size": arguments["mlp_dim"],
        "num_hidden_layers": arguments["num_layers"],
        "num_attention_heads": arguments["num_heads"],
        "hidden_act": _NAMES[arguments["mlp"]],
        "layer_norm_eps": arguments["epsilon"],
    }
    config = {
        "architectures": ["CLIPModel" if kind == "clip" else "SiglipModel"],
        "model_type": kind,
        "dtype": "float32",
        "text_config": text,
        "vision_config": vision,
    }
    if kind == "clip":
        text["eos_token_id"] = 2 if arguments["pool"] == "largest" else arguments["end_id"]
        text["projection_dim"] = config["projection_dim"] = arguments["embedding_size"]
    else:
        text["projection_size"] = arguments["embedding_size"]
    return config


registry.WRITERS[TwoTowers] = write
