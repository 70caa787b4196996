"""Writes a model as a folder for timm or transformers, by inverting the renaming rules of a format."""

import json
import logging
import os
import re
import tempfile

import keras
import numpy as np

from keras_vit.checkpoints import inference, names, registry
from keras_vit.checkpoints.formats import KERAS_VIT_FIELDS, rename

# Arguments that a reader of the folder must infer correctly to compute the same outputs.
_CHECKED = (
    *("patch_size", "hidden_size", "num_layers", "mlp_dim", "num_heads", "input_shape", "classifier", "pool_norm"),
    *("position_embedding", "attention_bias", "mlp_bias", "epsilon", "rotary", "include_top", *registry.PARTS, "mlp"),
    *("max_patches", "position_embedding_at"),
)
_DEFAULTS = {"attention_bias": "qkvo", "epsilon": 1e-6, "position_embedding_at": "stem"}
_DEFAULTS |= {"patch_bias": True, "mlp_bias": True}
# Largest change of a feature, relative to the largest, for which a written model gets the epsilon of a library.
_EPSILON_TOLERANCE = 1e-3

log = logging.getLogger("keras_vit")


def write_folder(model, path, form_name, arrays, class_names=None):
    """Writes a model as a folder, in the first of a library's formats that can store the whole model."""
    from safetensors.numpy import save_file

    forms = [form for family in reversed(registry.FAMILIES) for form in family.formats if form.name == form_name]
    forms = [form for form in forms if form.write_config is not None]
    if not forms:
        known = sorted({f.name for family in registry.FAMILIES for f in family.formats if f.write_config})
        raise ValueError(f"`format` must be one of {', '.join(['vit_jax', *known])}. Received: format={form_name!r}")
    # Try each format, and collect the reasons why formats do not support the model.
    arguments = {**getattr(model, "arguments", {}), "preprocessing": model.preprocessing}
    height, width, _ = model.image_shape
    if form_name == "huggingface" and model.preprocessing.resize == "shorter_side" and height != width:
        raise ValueError(
            "transformers cannot resize the shorter side for images that are not square: use format='timm', or set "
            "model.preprocessing = dataclasses.replace(model.preprocessing, resize='stretch'). "
            f"Received: a model for {height}x{width} pixels with resize='shorter_side'"
        )
    labels = _labels(class_names, form_name)
    if model.input_preprocessing.logits_activation == "sigmoid" and model.arguments.get("include_top"):
        labels["problem_type"] = "multi_label_classification"  # tells readers to apply a sigmoid to the logits
    problems = []  # `(rank, reason)` of rejected formats; the reason with the lowest rank is reported
    is_new = not os.path.exists(path)
    os.makedirs(path, exist_ok=True)
    for form in forms if "num_layers" in arguments else ():
        config, options = form.write_config(arguments)
        if not isinstance(config, dict):
            problems += [] if config is None else [(0, config)]
            continue
        if not arguments["mlp_bias"] and "mlp_bias" not in config:
            problems.append((100, "MLPs of the format always have biases"))
            continue
        tensors, left = render(form, _adapted(arrays, **options), arguments["num_layers"], **options)
        if left:
            problems.append((len(left), f"the closest format does not support {', '.join(sorted(left)[:3])}"))
            continue
        # Read the new files back. Replace the files in the folder only if the new files describe the same model.
        with tempfile.TemporaryDirectory(dir=path) as folder:
            save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
            _write_json({**config, **labels}, folder, "config.json")
            if form_name == "huggingface":
                _write_json(_preprocessor(model), folder, "preprocessor_config.json")
            different = _difference(arguments, folder, model)
            if different is None:
                for name in os.listdir(folder):
                    os.replace(os.path.join(folder, name), os.path.join(path, name))
                return
            problems.append((0, f"the closest format does not support {different}={arguments.get(different)!r}"))
    if is_new:
        os.rmdir(path)
    reason = min(problems)[1] if problems else "no class of the library has all of the model's parts"
    raise ValueError(f"No format of {form_name!r} supports this model: {reason}. Received: model={model.name!r}")


def _labels(class_names, form_name):
    """Returns the config.json fields that contain the class names."""
    if class_names is None:
        return {}
    if form_name == "timm":
        return {"label_names": class_names}
    return {
        "id2label": dict(enumerate(class_names)),
        "label2id": {name: index for index, name in reversed([*enumerate(class_names)])},
    }


def _write_json(fields, folder, name):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(fields, file, indent=2)


def _preprocessor(model):
    """Returns the preprocessor_config.json for transformers, plus the fields that only keras_vit reads."""
    preprocessing, (height, width, _) = model.preprocessing, model.image_shape
    resized, white = [*preprocessing.resized((height, width))], 2**preprocessing.bit_depth - 1
    is_stretched = preprocessing.resize == "stretch"
    return {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "size": {"height": resized[0], "width": resized[1]} if is_stretched else {"shortest_edge": min(resized)},
        "resample": 3 if preprocessing.interpolation == "bicubic" else 2,
        "do_center_crop": not is_stretched or resized != [height, width],
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [x / white for x in preprocessing.mean],
        "image_std": [x / white for x in preprocessing.std],
        **{name: getattr(preprocessing, name) for name in KERAS_VIT_FIELDS},
    }


def _adapted(arrays, add_row="", no_head_bias=False, **_):
    """Returns the arrays as a library expects them.

    `add_row="zeros"` inserts zeros as the class token's position embedding. `add_row="into token"` adds the class
    token's position embedding to the class token and omits its row. `no_head_bias` removes a head bias of zeros. Other
    head biases get a name that no format supports.
    """
    arrays = dict(arrays)
    positions, token = arrays.get(names.POSITIONS), arrays.get(names.CLASS_TOKEN)
    if add_row == "zeros":
        arrays[names.POSITIONS] = np.concatenate([np.zeros_like(positions[:, :1]), positions], axis=1)
    if add_row == "into token":
        arrays[names.CLASS_TOKEN], arrays[names.POSITIONS] = token + positions[:, :1], positions[:, 1:]
    if no_head_bias and np.any(bias := arrays.pop(names.HEAD[1], 0)):
        arrays["the head's bias"] = bias
    return arrays


def _difference(arguments, folder, model):
    """Returns the first argument that a reader of the folder would infer incorrectly, or None.

    Another epsilon is accepted and logged if it hardly changes the outputs.
    """

    def value(arguments, name):
        if name == "mlp":
            return arguments.get("mlp") or ("gelu" if arguments.get("exact_gelu") else "gelu_tanh")
        value = arguments.get(name, _DEFAULTS.get(name)) or False
        return bool(value) if name == "layer_scale" else value  # readers do not infer the initial scale

    _, read = inference.find_arguments(folder)
    different = [name for name in _CHECKED if value(arguments, name) != value(read, name)]
    if different == ["epsilon"]:
        before, after = value(arguments, "epsilon"), value(read, "epsilon")
        change = _epsilon_effect(model, after)
        if change <= _EPSILON_TOLERANCE:
            log.warning(
                "The library uses epsilon=%g instead of %g, which changes the features of noise by %.1e of the largest "
                "feature", after, before, change,
            )  # fmt: skip
            return None
    return next(iter(different), None)


def _epsilon_effect(model, epsilon):
    """Returns the largest change of a feature with another epsilon, relative to the largest feature."""
    other = type(model).from_config({**model.get_config(), "epsilon": epsilon})
    other.set_weights(model.get_weights())
    images = np.random.default_rng(0).normal(size=(2, *model.image_shape)).astype("float32")

    def features(model):  # the inputs of the head, which may be all zeros
        outputs = model.head.input if model.arguments["include_top"] else model.output
        return np.stack(keras.Model(model.input, outputs).predict_on_batch(images)).astype("float32")

    before, after = features(model), features(other)
    return np.abs(after - before).max() / max(np.abs(before).max(), 1e-30)


def render(form, arrays, num_layers, prefix="", skip="$^", **_):
    """Returns `{name in the format: array}`, and `{canonical name: array}` for arrays that the format cannot store."""
    # `prefix` replaces the optional group of a pattern. Names that match `skip` are omitted.
    left, tensors = dict(arrays), {}
    for pattern, _ in form.renames:
        for stem in _stems(pattern, num_layers, prefix):
            target = None if re.fullmatch(skip, stem) else rename(form, stem)
            if not target:
                continue
            # An array in the file may concatenate several arrays of the model, such as queries, keys and values.
            choices = re.search(r"[^/]*\|[^/]*", target)
            paths = [target.replace(choices[0], part) for part in choices[0].split("|")] if choices else [target]
            for kind in ("", "/kernel", "/scale", "/bias"):
                found = [names.canonical_name(path + kind) for path in paths]
                is_bias = kind == "/bias" or stem.endswith("bias")
                if all(name in left for name in found) and not ("in_proj" in stem and is_bias != stem.endswith("bias")):
                    parts = [_to_pytorch(name, left.pop(name)) for name in found]
                    ending = f".{'bias' if is_bias else 'weight'}" if kind and "in_proj" not in stem else ""
                    if stem.endswith("position_embedding"):
                        ending, parts = ".weight", [parts[0][0]]
                    if stem.endswith("class_embedding"):
                        parts = [parts[0].reshape(-1)]
                    tensors[stem + ending] = np.ascontiguousarray(np.concatenate(parts), np.float32)
    return tensors, left


def _stems(pattern, num_layers, prefix):
    """Yields the names that a pattern matches; for alternative spellings of a name, yields only the first."""
    if match := re.search(r"\((\?:)?([^()]*)\)(\?)?", pattern):
        inner = match[2]
        options = [inner.split("|")[0]] if match[1] and "bias" not in inner else inner.split("|")
        if match[3]:
            options = [prefix]
        elif inner == r"\d+":
            options = [str(i) for i in range(num_layers)]
        elif charset := re.fullmatch(r"\[(\w+)\]", inner):
            options = list(charset[1])
        for option in options:
            yield from _stems(pattern[: match.start()] + option + pattern[match.end() :], num_layers, prefix)
    else:
        yield pattern.split("|")[0].replace("\\.", ".")


def _to_pytorch(name, array):
    """Transposes kernels to PyTorch's layout and merges the axis of attention heads into the features."""
    if name.endswith("_0/out/kernel"):
        return array.reshape(-1, array.shape[-1]).T
    if re.search("/(query|key|value)/", name):
        array = array.reshape(-1 if array.ndim == 2 else (len(array), -1))
    if name.endswith("/kernel"):
        return array.T if array.ndim == 2 else array.transpose(3, 2, 0, 1)
    return array
