"""Opens checkpoints of any supported format and converts their arrays to canonical names and the Keras layout."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import warnings
from typing import Any

from keras_vit.checkpoints import hub, names
from keras_vit.checkpoints.position_embeddings import source_grid
from keras_vit.checkpoints.readers import LazyArray, NpzFile, SafetensorsFile, ShardedFile
from keras_vit.checkpoints.registry import FAMILIES, Format
from keras_vit.preprocessing import Preprocessing

# `save` adds a zip comment to .npz files: this prefix, then JSON with facts about the model. Other libraries ignore
# the comment.
COMMENT = "keras_vit "
_TOKENS = ("/cls", "_embedding", "_tokens", "/probe")  # path endings of variables of shape `(1, N, D)`
_KINDS = r"vit|bit|deit|dino|clip|siglip|eva|jepa|mae"  # matches the model types of all known families
_UNKNOWN = Format("unknown", "", ())
_DEFAULTS = Preprocessing().to_config()
# Fields of a preprocessor_config.json that only keras_vit writes and reads.
KERAS_VIT_FIELDS = ("crop_fraction", "interpolation", "rounding", "exif", "bit_depth", "library")


@dataclasses.dataclass
class Checkpoint:
    """An open checkpoint."""

    format: Format
    arrays: dict[str, LazyArray]  # weights by canonical name, or by name in the file if that name is unknown
    other_arrays: dict[str, LazyArray]  # arrays that are not weights of the model, such as optimizer state
    # Facts about the model, for example from the zip comment or a config.json. Most keys are names of constructor
    # arguments. "grid" is the grid of the position embeddings. "constructor" and "arguments" rebuild the model.
    facts: dict[str, Any]
    stated: frozenset = frozenset()  # names of the facts that are not defaults of the format
    unknown_kind: str = ""  # the model type in the config.json, if it belongs to no known family

    @property
    def shapes(self):
        return {name: array.shape for name, array in self.arrays.items()}


@contextlib.contextmanager
def open_checkpoint(path, subtree="", num_heads=None):
    """Opens a local .npz file, .safetensors file or index of shards, reads the headers, and yields a `Checkpoint`.

    `num_heads` splits the arrays of attention; None for the number in the config.
    """
    path = str(path)
    if path.endswith(".json"):
        opened = ShardedFile(hub.shards(path))
    else:
        opened = SafetensorsFile(path) if path.endswith(".safetensors") else NpzFile(path)
    with opened as file:
        # Find the format and collect facts. A config.json next to an .npz file describes a training run, not a model.
        read = functools.cache(functools.partial(_read_json, path))
        config = read("config.json")
        form, prefix = _find_format(file.arrays, subtree, read, path)
        facts = _facts_of(form, read(form.config), path)
        stated = {**_preprocessing_of(form, path), **facts, **_parse_comment(file.comment)}
        facts = {**form.facts, **stated}
        if form.layout == "pytorch" and "preprocessing" in facts:
            library = "transformers" if form.name == "huggingface" else "torchvision"
            facts["preprocessing"] = {"library": library, **facts["preprocessing"]}
        # Separate the weights from other arrays. Rename the weights and convert their layout.
        inside, others = {}, {}
        for name, array in file.arrays.items():
            is_weight = name.startswith(prefix) and rename(form, name.removeprefix(prefix)) != ""
            is_weight = is_weight and 0 not in array.shape  # a file may contain an empty array of register tokens
            (inside if is_weight else others)[name.removeprefix(prefix) if is_weight else name] = array
        weights = _translate(inside, form, num_heads or facts.get("num_heads"))
        _shape_naflex(weights, facts, path)
        if form.layout == "pytorch":
            if names.EMBEDDING in weights and names.POSITIONS not in weights and not (config or facts.get("rotary")):
                raise ValueError(
                    "Without position embeddings, the file requires its config.json, because the arrays do not show "
                    f"whether the model rotates queries and keys. Received: {path}"
                )
            _place_positions(weights, facts)
        kind = str(config.get("model_type") or config.get("architecture") or "")
        unknown_kind = "" if re.search(_KINDS, kind, re.IGNORECASE) else kind
        yield Checkpoint(form, weights, others, facts, frozenset(stated), unknown_kind)


def _find_format(arrays, subtree, read, path):
    """Returns the format that recognizes the most array names, and the prefix of the weights' names."""
    best, best_score = (_UNKNOWN, ""), (-1, False)
    for form in (form for family in FAMILIES for form in family.formats):
        prefixes = form.prefixes
        if subtree:
            prefixes = [p + subtree.rstrip("/") + "/" for p in ("", "params/", "opt/target/")]
        for prefix in prefixes:
            inside = {n.removeprefix(prefix): array.shape for n, array in arrays.items() if n.startswith(prefix)}
            if any(re.fullmatch(form.marker, name) for name in inside):
                score = (sum(rename(form, name) is not None for name in inside), form.fits is not None)
                with _reading(form.config, path):
                    fits = score > best_score and (form.fits is None or form.fits(inside, read(form.config)))
                if fits:
                    best, best_score = (form, prefix), score
                break
    return best


def rename(form, name):
    """Returns the variable path for a name in a file, "" if the array is not a weight, or None for an unknown name."""
    stem = re.sub(r"\.(weight|bias)$", "", name) if form.layout == "pytorch" else name
    for pattern, replacement in form.renames:
        if match := re.fullmatch(pattern, stem) or re.fullmatch(pattern, name):
            return match.expand(replacement)
    return None


def _translate(arrays, form, num_heads):
    """Returns the weights of a file as `{canonical name: LazyArray}`."""
    weights = {}
    for name_in_file, array in arrays.items():
        target = rename(form, name_in_file)
        for path, part in [(name_in_file, array)] if target is None else _split(target, array):
            if form.layout == "pytorch" and path != name_in_file:
                ending = name_in_file.rpartition(".")[2].removeprefix("in_proj_")
                path, part = _from_pytorch(path, ending, part, num_heads)
            name = names.canonical_name(path)
            weights[name] = _without_axes_of_one(name, part)
    return weights


def _shape_naflex(weights, facts, path):
    """Reshapes a NaFlex file's patch matrix to a convolution kernel, and its 2-D grid of positions to a sequence."""
    channels, kernel = facts.pop("num_channels", 3), weights.get(names.EMBEDDING)
    if kernel is None or len(kernel.shape) == 4:
        return
    is_matrix = len(kernel.shape) == 2 and type(channels) is int and channels > 0
    side = math.isqrt(kernel.shape[0] // channels) if is_matrix else 0
    if not side or side**2 * channels != kernel.shape[0]:
        raise ValueError(
            "The kernel of the patch embedding must be 4-D or, for NaFlex, a matrix with one row for each value of a "
            "square patch. "
            f"Received: shape={kernel.shape} in {path}"
        )
    weights[names.EMBEDDING] = kernel.reshape((side, side, channels, kernel.shape[1]))
    facts.setdefault("max_patches", 256)  # the value of the published models
    positions = weights.get(names.POSITIONS)
    if positions is not None and len(positions.shape) == 3 and positions.shape[0] > 1:  # big_vision's layout
        rows, columns, hidden_size = positions.shape
        weights[names.POSITIONS] = positions.reshape((1, rows * columns, hidden_size))
        facts["grid"] = rows, columns


def _place_positions(weights, facts):
    """Replaces the fact "image_size" by "grid", the patch grid, unless the number of positions contradicts the grid.

    Some files have position embeddings for register tokens. keras_vit does not support them, so this function adds
    these embeddings to the register tokens.
    """
    # Derive the grid from the image size.
    sides, kernel = facts.pop("image_size", None), weights.get(names.EMBEDDING)
    sides = (sides, sides) if type(sides) is int else tuple(sides) if isinstance(sides, list) else ()
    grid = None
    if kernel is not None and len(kernel.shape) == 4 and len(sides) == 2 and all(type(x) is int for x in sides):
        grid = sides[0] // kernel.shape[0], sides[1] // kernel.shape[1]
    positions, registers = weights.get(names.POSITIONS), weights.get("register_tokens")
    tokens = names.count_class_tokens(weights)
    if positions is None or len(positions.shape) != 3:
        return facts.update({"grid": grid} if grid and min(grid) > 0 else {})
    count = positions.shape[1]

    def fits(rows):
        return rows > 0 and source_grid(rows, tokens, (0, 0), grid, facts.get("class_row")) is not None

    # If some position embeddings belong to registers, add them to the register tokens and drop their rows.
    extra = registers.shape[1] if registers is not None and len(registers.shape) == 3 else 0
    if extra and not fits(count) and fits(count - extra):
        rows = positions.map(registers.shape, lambda array: array[:, tokens : tokens + extra])
        weights["register_tokens"] = registers.map(registers.shape, lambda array: array + rows.read())
        left = (1, count - extra, positions.shape[2])
        kept = [i for i in range(count) if not tokens <= i < tokens + extra]
        weights[names.POSITIONS] = positions.map(left, lambda array: array[:, kept])
        count -= extra
    if grid and fits(count):
        facts["grid"] = grid


def _split(target, array):
    """Splits an array that contains several variables. Returns a list of `(path, LazyArray)`."""
    if "*" in target and len(array.shape) > 1 and array.shape[0]:
        layers = [part.reshape(array.shape[1:]) for part in array.split(array.shape[0])]
        return [(target.replace("*", str(i)), layer) for i, layer in enumerate(layers)]
    if (choices := re.search(r"[^/]*\|[^/]*", target)) and array.shape:
        names_of_parts = choices[0].split("|")
        if array.shape[0] % len(names_of_parts) == 0:
            parts = zip(names_of_parts, array.split(len(names_of_parts)))
            return [(target.replace(choices[0], name), part) for name, part in parts if name]
    return [(target, array)]


def _from_pytorch(path, ending, array, num_heads):
    """Returns the complete variable path of a PyTorch array, and the array in the Keras layout."""
    # Complete the path, and move the input axes in front of the output axis.
    if ending == "bias":
        path += "/bias"
    elif ending == "weight" and not path.endswith("_embedding"):
        path += "/scale" if len(array.shape) == 1 else "/kernel"
        if len(array.shape) == 2:
            array = array.transpose()
        elif len(array.shape) == 4:
            array = array.transpose((2, 3, 1, 0))
    elif path.endswith(_TOKENS) and 0 < len(array.shape) < 3:
        array = array.reshape((1,) * (3 - len(array.shape)) + array.shape)
    # Separate the axis of attention heads.
    module = path.rpartition("/")[0]
    if num_heads and array.shape:  # a width that `num_heads` does not divide is rejected later
        if module.endswith(("/query", "/key", "/value")) and not array.shape[-1] % num_heads:
            *rest, units = array.shape
            array = array.reshape((*rest, num_heads, units // num_heads))
        elif path.endswith("/attention/out/kernel") and not array.shape[0] % num_heads:
            units, *rest = array.shape
            array = array.reshape((num_heads, units // num_heads, *rest))
    return path, array


def _without_axes_of_one(name, array):
    """Removes the leading axes of length 1 from a head `(1, 1, in, classes)` or a GroupNorm array `(1, 1, 1, C)`."""
    axes = 2 if name == names.HEAD[0] else 3 if names.is_group_norm(name) else 0
    has_axes = len(array.shape) == 4 and array.shape[:axes] == (1,) * axes
    return array.reshape(array.shape[axes:]) if has_axes else array


@contextlib.contextmanager
def _reading(name, path):
    """Converts errors in the block to a `ValueError` that names the JSON file next to the weights."""
    try:
        yield
    except (OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"The {name} next to the weights is invalid: {error}. Received: {path}") from error


def _read_json(path, name):
    """Returns the JSON object in a file next to the weights, or {} if the file does not exist."""
    json_path = os.path.join(os.path.dirname(path), name)
    if path.endswith(".npz") or not os.path.exists(json_path):
        return {}
    with _reading(name, path), open(json_path, encoding="utf-8") as file:
        config = json.load(file)
        if not isinstance(config, dict):
            raise ValueError("it is not a JSON object")
        return config


def _facts_of(form, config, path):
    """Returns the facts in the config next to a file."""
    if form.read_config is None or not config:
        return {}
    with _reading(form.config, path):
        facts = {name: value for name, value in form.read_config(config).items() if value is not None}
        heads, epsilon = facts.get("num_heads", 1), facts.get("epsilon", 1)
        if type(heads) is not int or heads < 1:
            raise ValueError(f"the number of attention heads must be a positive integer, not {heads!r}")
        if type(epsilon) not in (int, float) or not epsilon > 0:
            raise ValueError(f"the epsilon of normalization must be a positive number, not {epsilon!r}")
        if config.get("problem_type") == "multi_label_classification":
            facts["logits_activation"] = "sigmoid"
        return facts


def read_class_names(path):
    """Returns the class names in the config.json next to a file, or None if the names are missing or placeholders."""
    if path.endswith(".npz"):
        return None
    config = _read_json(path, "config.json")
    with _reading("config.json", path):
        if labels := config.get("id2label"):
            labels = {int(index): str(name) for index, name in labels.items()}
            names = [labels[index] for index in range(len(labels))]
        else:
            labels = config.get("label_names") or (config.get("pretrained_cfg") or {}).get("label_names")
            names = [str(name) for name in labels] if isinstance(labels, list) else []
    is_placeholder = names == [f"LABEL_{index}" for index in range(len(names))]
    return None if is_placeholder else names


def _preprocessing_of(form, path):
    """Returns the fact "preprocessing" from the JSON files next to PyTorch weights, or {} if they are missing."""
    if form.layout != "pytorch":
        return {}
    # As in transformers 5, the processor's file takes precedence if it describes the images.
    name = "processor_config.json"
    config = _read_json(path, name).get("image_processor")
    if config is None:
        name = "preprocessor_config.json"
        config = _read_json(path, name)
    if config == {}:
        return {}
    with _reading(name, path):
        fields = _read_preprocessor(config, {**_DEFAULTS, **form.facts.get("preprocessing", {})}, name)
        Preprocessing(**fields)
        return {"preprocessing": fields}


def _read_preprocessor(config, defaults, file_name):
    """Converts the JSON object of an image processor to fields of a `Preprocessing`; warns about other settings."""
    kind = config.get("image_processor_type") or config.get("feature_extractor_type") or ""
    size, crop = config.get("size"), config.get("crop_size")
    if isinstance(size, int):
        is_short = "crop_size" in config and not kind.startswith(("DeiT", "ViT"))  # these two stretch, then crop
        size = {"shortest_edge" if is_short else "height": size}
    # Find the resize method and the fraction of the image that the center crop keeps.
    resize, crop_fraction = defaults["resize"], defaults["crop_fraction"]
    crops = config.get("do_center_crop", crop is not None)
    resized = isinstance(size, dict) and (size.get("shortest_edge") or size.get("height"))
    if resized:
        cropped = (crop.get("height") if isinstance(crop, dict) else crop) or resized
        resize = "shorter_side" if "shortest_edge" in size else "stretch"
        crop_fraction = min(cropped / resized, 1.0) if crops else 1.0
    resample = config.get("resample", 2)  # Pillow's codes
    is_ignored = {
        "do_center_crop": resized and resize == "shorter_side" and not crops,
        "size": size is not None and not resized,
        "do_resize": not config.get("do_resize", True),
        "resample": resample not in (2, 3),
    }
    # Convert the mean and std to the scale of pixel values, [0, 255].
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1
    if not factor > 0:
        raise ValueError(f"`rescale_factor` must be positive, not {factor}")
    white = 255 if abs(255 * factor - 1) < 1e-6 else 1 / factor
    white = white * 257 if config.get("bit_depth") == 16 else white
    mean, std = config.get("image_mean"), config.get("image_std")
    if not config.get("do_normalize", True):
        mean, std = 0, 1
    mean, std = [[value] * 3 if isinstance(value, int | float) else value for value in (mean, std)]
    if any(is_ignored.values()):
        values = ", ".join(f"{name}={config.get(name)!r}" for name, ignored in is_ignored.items() if ignored)
        warnings.warn(
            f"Ignored {values} in {file_name}. Images are resized with bilinear or bicubic interpolation, "
            "then cropped to the model's image size.",
            stacklevel=2,
        )
    return {
        "mean": [white * value for value in mean] if mean is not None else defaults["mean"],
        "std": [white * value for value in std] if std is not None else defaults["std"],
        "resize": resize,
        "crop_fraction": crop_fraction,
        "interpolation": "bicubic" if resample in (1, 3) else "bilinear",
        **{name: config[name] for name in KERAS_VIT_FIELDS if name in config},
    }


def _parse_comment(comment):
    """Returns the facts in a zip comment, or {} if the comment is not from keras_vit or is invalid."""
    try:
        facts = json.loads(comment.removeprefix(COMMENT)) if comment.startswith(COMMENT) else {}
        if "grid" in facts:
            facts["grid"] = tuple(map(int, facts["grid"]))
        if "arguments" in facts:
            arguments = {n: tuple(v) if isinstance(v, list) else v for n, v in facts["arguments"].items()}
            facts = {**arguments, **facts, "arguments": arguments}
        if "preprocessing" in facts:
            facts["preprocessing"] = Preprocessing.from_config(facts["preprocessing"]).to_config()
        return facts
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
