"""Writing a model as a folder that timm or transformers load: the formats of families, read backwards."""

import json
import os
import re
import tempfile

import numpy as np

from keras_vit.checkpoints import inference, names, registry
from keras_vit.checkpoints.formats import rename

# What a folder must say about a model so that the reader computes the same.
_CHECKED = (
    *("patch_size", "hidden_size", "num_layers", "mlp_dim", "num_heads", "input_shape", "classifier", "pool_norm"),
    *("position_embedding", "attention_bias", "mlp_bias", "epsilon", "rotary", "include_top", *registry.PARTS),
)
_DEFAULTS = {"attention_bias": "qkvo", "epsilon": 1e-6, "patch_bias": True, "mlp_bias": True}


def write_folder(model, path, form_name, arrays):
    """Writes `model.safetensors` and `config.json` in the first format of that name that has a place for everything."""
    from safetensors.numpy import save_file

    forms = [form for family in reversed(registry.FAMILIES) for form in family.formats if form.name == form_name]
    forms = [form for form in forms if form.write_config is not None]
    if not forms:
        known = sorted({f.name for family in registry.FAMILIES for f in family.formats if f.write_config})
        raise ValueError(f"`format` must be one of {', '.join(['vit_jax', *known])}. Received: format={form_name!r}")
    arguments, problem = {**getattr(model, "arguments", {}), "preprocessing": model.preprocessing}, None
    os.makedirs(path, exist_ok=True)
    for form in forms if arguments.get("mlp_bias") else ():
        config, options = form.write_config(arguments)
        if config is None:
            continue
        tensors, left = render(form, _adapted(arrays, **options), arguments["num_layers"], **_names_of(options))
        if left:
            problem = problem or f"it has no place for {', '.join(sorted(left)[:3])}"
            continue
        with tempfile.TemporaryDirectory(dir=path) as folder:
            save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config, file, indent=2)
            different = _difference(arguments, folder)
            if different is None:
                for name in os.listdir(folder):
                    os.replace(os.path.join(folder, name), os.path.join(path, name))
                return
            problem = f"it does not say {different}={arguments.get(different)!r}"
    reason = f": {problem}" if problem else ""
    raise ValueError(f"No format of {form_name!r} holds this model{reason}. Received: model={model.name!r}")


def _names_of(options):
    return {name: options[name] for name in ("prefix", "skip") if name in options}


def _adapted(arrays, add_row="", no_head_bias=False, **_):
    """The arrays as a library wants them: with the row of positions of a class token, or with that row in the token."""
    arrays = dict(arrays)
    positions, token = arrays.get(names.POSITIONS), arrays.get(names.CLASS_TOKEN)
    if add_row == "zeros":
        arrays[names.POSITIONS] = np.concatenate([np.zeros_like(positions[:, :1]), positions], axis=1)
    if add_row == "into token":
        arrays[names.CLASS_TOKEN], arrays[names.POSITIONS] = token + positions[:, :1], positions[:, 1:]
    if no_head_bias and not np.any(arrays.get(names.HEAD[1], 0)):
        arrays.pop(names.HEAD[1], None)
    return arrays


def _difference(arguments, folder):
    """The first argument that a reader of the folder would take for another; None if there is none."""
    _, read = inference.find_arguments(folder)

    for name in _CHECKED:
        default = _DEFAULTS.get(name)
        ours, theirs = arguments.get(name, default) or False, read.get(name, default) or False
        if name == "layer_scale":  # an initial value
            ours, theirs = bool(ours), bool(theirs)
        if ours != theirs:
            return name
    return None if _gelu(arguments) == _gelu(read) else "mlp"


def _gelu(arguments):
    return arguments.get("mlp") or ("gelu" if arguments.get("exact_gelu") else "gelu_tanh")


def render(form, arrays, num_layers, prefix="", skip="$^"):
    """Returns the arrays that a format names, by their names in a file, and those left, by canonical name."""
    # `prefix` is written for the optional beginning of names; names that match `skip` are not used.
    left, tensors = dict(arrays), {}
    for pattern, _ in form.renames:
        for stem in _stems(pattern, num_layers, prefix):
            target = None if re.fullmatch(skip, stem) else rename(form, stem)
            if not target:
                continue
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
    """The names that a pattern stands for. Of several spellings it is the first."""
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
    """An array in the layout of PyTorch."""
    if name.endswith(("/query/kernel", "/key/kernel", "/value/kernel")):
        return array.reshape(len(array), -1).T
    if name.endswith("_0/out/kernel"):
        return array.reshape(-1, array.shape[-1]).T
    if name.endswith(("/query/bias", "/key/bias", "/value/bias")):
        return array.reshape(-1)
    if name.endswith("/kernel"):
        return array.T if array.ndim == 2 else array.transpose(3, 2, 0, 1)
    return array
