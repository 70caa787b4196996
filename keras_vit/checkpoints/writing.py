"""Writes a model as a folder for timm or transformers, with the names of a dialect."""

import json
import logging
import math
import os
import tempfile
from pathlib import Path

import numpy as np

from keras_vit.arguments import parameters_of
from keras_vit.checkpoints import inference, names, registry
from keras_vit.checkpoints.dialects.dialect import NotSupportedError, gelu_of
from keras_vit.checkpoints.dialects.transformers import write_preprocessor

# Arguments that files omit, because they do not change the logits of a loaded model.
NOT_STORED = (
    "dropout",
    "attention_dropout",
    "stochastic_depth",
    "remat",
    "head_bias",
    "masking_rate",
    "classifier_activation",
)
# Arguments that a reader of a folder may infer differently: `mlp` and the arrays determine the same
# outputs, and readers get `position_resampling` and the preprocessing from the library.
_NOT_COMPARED = (
    *NOT_STORED,
    "exact_gelu",
    "classes",
    "class_token_position",
    "position_resampling",
    "preprocessing",
)
# Up to this epsilon, a written model may get the epsilon of a library, because both hardly change
# the outputs.
_LARGEST_EPSILON = 1e-5

log = logging.getLogger("keras_vit")


def write_folder(model, path, library, arrays, class_names, logits_activation):
    """Writes a model as a folder, in the first dialect of a library that can store the model."""
    _check_format(model, library)
    if library == "huggingface" and os.path.exists(f"{path}/processor_config.json"):
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
    problems = [NotSupportedError("no class of the library has all of the model's parts", math.inf)]
    # Only Vision Transformers, which have the argument `attention_bias`, can be written.
    for dialect in registry.dialects(type(model)) if "attention_bias" in arguments else ():
        if dialect.name != library or dialect.write_config is None:
            continue
        try:
            if (folder := dialect.write_config(arguments)) is not None:
                return _write_in_dialect(dialect, folder, model, path, arguments, arrays, labels)
        except NotSupportedError as error:
            problems.append(error)
    if is_new:
        os.rmdir(path)
    reason = min(problems, key=lambda problem: problem.rank)
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


def _write_in_dialect(dialect, folder, model, path, arguments, arrays, labels):
    """Writes the files of one dialect.

    Raises a `NotSupportedError` if the dialect cannot store the model.
    """
    from safetensors.numpy import save_file

    if not arguments["mlp_bias"] and "mlp_bias" not in folder.config:
        raise NotSupportedError("MLPs of the format always have biases", rank=100)
    tensors, left = dialect.write(_adapted(arrays, folder), arguments["num_layers"], folder)
    if left:
        names_left = ", ".join(sorted(left)[:3])
        raise NotSupportedError(f"the closest format does not support {names_left}", len(left))
    # Read the new files back. Replace the files in the folder only if the new files describe the
    # same model.
    with tempfile.TemporaryDirectory(dir=path) as part:
        save_file(tensors, os.path.join(part, "model.safetensors"), {"format": "pt"})
        contents = {"config.json": {**folder.config, **labels}}
        if dialect.name == "huggingface":
            contents["preprocessor_config.json"] = write_preprocessor(model)
        for name, content in contents.items():
            Path(part, name).write_text(json.dumps(content, indent=2))
        _check_read(arguments, part)
        for name in os.listdir(part):
            os.replace(os.path.join(part, name), os.path.join(path, name))


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
    """Returns the value of an argument in a form that `_check_read` compares."""
    if name == "mlp":
        return gelu_of(arguments)
    value = arguments.get(name) or False
    # Readers do not infer the initial scale.
    return bool(value) if name == "layer_scale" else value


def _check_read(arguments, folder):
    """Raises a `NotSupportedError` if a reader of the folder would not build the same model.

    Another epsilon is accepted and logged if both are tiny.
    """
    try:
        family, inferred = inference.find_arguments(folder)
    except ValueError as error:  # ends in the temporary path of the folder
        raise NotSupportedError(str(error).partition(" Received: ")[0]) from error
    parameters = parameters_of(family.constructor)
    read = {name: parameter.default for name, parameter in parameters.items()} | inferred
    different = [
        name
        for name in arguments
        if name not in _NOT_COMPARED and _comparable(arguments, name) != _comparable(read, name)
    ]
    epsilons = _comparable(arguments, "epsilon"), _comparable(read, "epsilon")
    if different == ["epsilon"] and max(epsilons) <= _LARGEST_EPSILON:
        log.warning("The library uses epsilon=%g instead of %g", *reversed(epsilons))
    elif different:
        name = different[0]
        raise NotSupportedError(f"the closest format does not support {name}={arguments[name]!r}")
