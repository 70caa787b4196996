"""Writes a model as a folder for timm or transformers, with the names of a dialect."""

import json
import logging
import os
import tempfile
from pathlib import Path

import numpy as np

from keras_vit.checkpoints import architectures, inference, names, registry
from keras_vit.checkpoints.dialects.dialect import NotSupportedError, gelu_of
from keras_vit.checkpoints.dialects.transformers import write_preprocessor

# Arguments that a reader of the folder must infer correctly to compute the same outputs.
_CHECKED = (
    "patch_size",
    "hidden_size",
    "num_layers",
    "mlp_dim",
    "num_heads",
    "input_shape",
    "classifier",
    "pool_norm",
    "position_embedding",
    "attention_bias",
    "mlp_bias",
    "epsilon",
    "rotary",
    "include_top",
    *architectures.PARTS,
    "mlp",
    "position_embedding_at",
)
# Values of arguments that a reader does not infer. Those of other arguments are False.
_DEFAULTS = {
    "attention_bias": "qkvo",
    "epsilon": 1e-6,
    "position_embedding_at": "stem",
    "patch_bias": True,
    "mlp_bias": True,
}
# Up to this epsilon, a written model may get the epsilon of a library, because both hardly change
# the outputs.
_LARGEST_EPSILON = 1e-5

log = logging.getLogger("keras_vit")


def write_folder(model, path, library, arrays, class_names, logits_activation):
    """Writes a model as a folder, in the first dialect of a library that can store the model."""
    _check_format(model, library)
    if library == "huggingface" and os.path.exists(os.path.join(path, "processor_config.json")):
        raise ValueError(
            "The folder has a processor_config.json, which takes precedence over the preprocessing "
            f"of the model. Choose another folder. Received: path={path!r}"
        )
    arguments = {**model.arguments, "preprocessing": model.preprocessing}
    labels = _labels(class_names, library)
    if logits_activation == "sigmoid" and arguments["include_top"]:
        # Tells readers to apply a sigmoid to the logits.
        labels["problem_type"] = "multi_label_classification"
    is_new = not os.path.exists(path)
    os.makedirs(path, exist_ok=True)
    # `(rank, reason)` of dialects that cannot store the model; the lowest rank is reported.
    problems = []
    # Only Vision Transformers, which have the argument `attention_bias`, can be written.
    for dialect in registry.dialects(type(model)) if "attention_bias" in arguments else ():
        if dialect.name != library or dialect.write_config is None:
            continue
        problem = _write_in_dialect(dialect, model, path, arguments, arrays, labels)
        if problem is None:
            return
        if problem[1]:
            problems.append(problem)
    if is_new:
        os.rmdir(path)
    _, reason = min(problems, default=(0, "no class of the library has all of the model's parts"))
    raise ValueError(
        f"No format of {library!r} supports this model: {reason}. Received: model={model.name!r}"
    )


def _check_format(model, library):
    """Raises a `ValueError` for an unknown format, or one that cannot store the preprocessing."""
    known = sorted(
        {dialect.name for dialect in registry.dialects() if dialect.write_config is not None}
    )
    if library not in known:
        raise ValueError(
            f"`format` must be one of {', '.join(['vit_jax', *known])}. Received: "
            f"format={library!r}"
        )
    height, width, _ = model.image_shape
    is_short_side = model.preprocessing.resize == "shorter_side"
    if library == "huggingface" and is_short_side and height != width:
        raise ValueError(
            "transformers cannot resize the shorter side for images that are not square: use "
            "format='timm', or set model.preprocessing = dataclasses.replace(model.preprocessing, "
            f"resize='stretch'). Received: a model for {height}x{width} pixels with "
            "resize='shorter_side'"
        )


def _write_in_dialect(dialect, model, path, arguments, arrays, labels):
    """Writes the files of one dialect and returns None.

    If the dialect cannot store the model, returns `(rank, reason)` instead. The reason is "" if the
    dialect is for another kind of model.
    """
    from safetensors.numpy import save_file

    try:
        folder = dialect.write_config(arguments)
    except NotSupportedError as error:
        return 0, str(error)
    if folder is None:
        return 0, ""
    if not arguments["mlp_bias"] and "mlp_bias" not in folder.config:
        return 100, "MLPs of the format always have biases"
    tensors, left = dialect.write(_adapted(arrays, folder), arguments["num_layers"], folder)
    if left:
        return len(left), f"the closest format does not support {', '.join(sorted(left)[:3])}"
    # Read the new files back. Replace the files in the folder only if the new files describe the
    # same model.
    with tempfile.TemporaryDirectory(dir=path) as part:
        save_file(tensors, os.path.join(part, "model.safetensors"), {"format": "pt"})
        contents = {"config.json": {**folder.config, **labels}}
        if dialect.name == "huggingface":
            contents["preprocessor_config.json"] = write_preprocessor(model)
        for name, content in contents.items():
            Path(part, name).write_text(json.dumps(content, indent=2))
        reason = _difference(arguments, part)
        if reason:
            return 0, reason
        for name in os.listdir(part):
            os.replace(os.path.join(part, name), os.path.join(path, name))
    return None


def _labels(class_names, library):
    """Returns the config.json fields that contain the class names."""
    if class_names is None:
        return {}
    class_names = list(map(str, class_names))
    if library == "timm":
        return {"label_names": class_names}
    return {
        "id2label": dict(enumerate(class_names)),
        "label2id": {name: index for index, name in enumerate(class_names)},
    }


def _adapted(arrays, folder):
    """Returns the arrays as a `Folder` describes them.

    A bias of the head that the library lacks gets a name that no dialect supports.
    """
    arrays = dict(arrays)
    positions = arrays.get(names.POSITIONS)
    if folder.class_row == "zeros":
        arrays[names.POSITIONS] = np.concatenate(
            [np.zeros_like(positions[:, :1]), positions], axis=1
        )
    if folder.class_row == "into token":
        arrays[names.CLASS_TOKEN] = arrays[names.CLASS_TOKEN] + positions[:, :1]
        arrays[names.POSITIONS] = positions[:, 1:]
    if not folder.has_head_bias and np.any(bias := arrays.pop(names.HEAD[1], 0)):
        arrays["the head's bias"] = bias
    return arrays


def _comparable(arguments, name):
    """Returns the value of an argument, or its default, in a form that `_difference` compares."""
    if name == "mlp":
        return gelu_of(arguments)
    value = arguments.get(name, _DEFAULTS.get(name)) or False
    # Readers do not infer the initial scale.
    return bool(value) if name == "layer_scale" else value


def _difference(arguments, folder):
    """Returns why a reader of the folder would not build the same model, or "".

    Another epsilon is accepted and logged if both are tiny.
    """
    try:
        _, read = inference.find_arguments(folder)
    except ValueError as error:  # ends in the temporary path of the folder
        return str(error).partition(" Received: ")[0]
    different = [
        name for name in _CHECKED if _comparable(arguments, name) != _comparable(read, name)
    ]
    if different == ["epsilon"]:
        before = _comparable(arguments, "epsilon")
        after = _comparable(read, "epsilon")
        if max(before, after) <= _LARGEST_EPSILON:
            log.warning("The library uses epsilon=%g instead of %g", after, before)
            return ""
    if not different:
        return ""
    name = different[0]
    return f"the closest format does not support {name}={arguments.get(name)!r}"
