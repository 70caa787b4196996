"""Which model a checkpoint is of, from the names and shapes of its arrays.

An architecture is a dict here: the arguments of `VisionTransformer` (or `depth`, `width_factor` and `version` of
`BiTResNet`) that shapes show, and "classes". What they do not show, such as the heads in a PyTorch file, is None.
"""

import os
import re
from typing import Any

from keras_vit.architectures import BIT_UNITS, NUM_HEADS
from keras_vit.checkpoints import position_embeddings, published
from keras_vit.checkpoints.dialects import open_checkpoint
from keras_vit.checkpoints.resolving import resolve, size_name
from keras_vit.checkpoints.vit_jax_names import (
    BIT_ROOT,
    CLASS_TOKEN,
    EMBEDDING,
    HEAD,
    OTHER_POSITIONS,
    POSITIONS,
    STEM_ROOT,
    first_kernel,
)

_NUMERICS = {"exact_gelu": False, "epsilon": 1e-6}  # the defaults of `VisionTransformer`
_BLOCK = "Transformer/encoderblock_"
_POSITIONS_X, _POSITIONS_Y = (f"Transformer/posembed_input/{axis}_embedding" for axis in "xy")
_DISTANCES = f"{_BLOCK}0/MultiHeadDotProductAttention_0/relative_embedding"
_AXIS = "block1/unit1/attention_{}/axis_embedding"
_QUERY = f"{_BLOCK}0/MultiHeadDotProductAttention_0/query/kernel"


def infer_architecture(
    source: str | os.PathLike, num_heads: int | None = None, grid: tuple[int, int] | None = None
) -> tuple[str, dict[str, Any]]:
    """The model that loads a checkpoint completely.

    Args:
        source: a path or URL, as `load` takes it.
        num_heads: attention heads; needed where neither the file nor a published size shows them (timm, Hugging Face).
        grid: `(rows, columns)` of the patches; needed where the file has no positions, or a grid that is not square.

    Returns:
        `(name, arguments)`: "VisionTransformer", "BiTResNet" or "AxialResNet", and its keyword arguments.

    Raises:
        ValueError: the file is not a checkpoint, is not of one of these models, or shows too little without
            `num_heads` or `grid`.
    """
    resolved = resolve(source, None, None)
    with open_checkpoint(resolved.path, resolved.subtree) as checkpoint:
        shapes = checkpoint.shapes
        architecture = architecture_of(shapes)
        top = {"include_top": architecture["classes"] is not None, "classes": architecture.pop("classes") or 1000}
        if "depth" in architecture:
            if None in architecture.values():
                raise ValueError(f"The checkpoint is not of a BiT ResNet of a known size. Received: {source}")
            factor = architecture["width_factor"]
            if factor % 1:
                architecture |= {"width_factor": 1, "width": round(64 * factor)}
            if architecture["version"] == "axial":
                del architecture["version"]
                return "AxialResNet", {**architecture, **top, **_axial_arguments(shapes)}
            return "BiTResNet", {**architecture, **top}
        hidden_size = architecture["hidden_size"]
        architecture["num_heads"] = (
            architecture["num_heads"] or num_heads or checkpoint.facts.get("num_heads") or NUM_HEADS.get(hidden_size)
        )
        if architecture["num_heads"] is None and hidden_size:
            raise ValueError(
                "The file does not show the number of attention heads, and its size is not a published one: give "
                f"`num_heads`. Received: hidden_size={hidden_size} in {source}"
            )
        unknown = [key for key, value in architecture.items() if value is None and key != "resnet_blocks"]
        if unknown:
            raise ValueError(
                f"The file is not of a Vision Transformer: it shows no {', '.join(unknown)}. Received: {source}"
            )
        (rows, columns), position_arguments = _position_arguments(shapes, checkpoint.grid or grid, source)
        arguments = {**architecture, **top, **position_arguments}
        stride = architecture["patch_size"]
        if architecture["resnet_blocks"] is not None:
            stride *= 2 ** (2 + max(len(architecture["resnet_blocks"]) - 1, 0))
        arguments["input_shape"] = (rows * stride, columns * stride, shapes[first_kernel(shapes)][2])
        return "VisionTransformer", arguments | _unusual(checkpoint.numerics)


def find_facts(source: str | os.PathLike) -> dict[str, Any]:
    """What a file says about its model beyond arrays, as far as it does: see `Checkpoint.facts`.

    Args:
        source: a path or URL, as `load` takes it. A published name has none: its models use the defaults.
    """
    if published.is_name(os.fspath(source)):
        return {}
    resolved = resolve(source, None, None)
    with open_checkpoint(resolved.path, resolved.subtree) as checkpoint:
        return checkpoint.facts


def find_numerics(source: str | os.PathLike) -> dict[str, Any]:
    """`exact_gelu` and `epsilon` of the model in a file, as far as the file, its library or its `config.json` say them;
    `source` as of `find_facts`."""
    return {name: value for name, value in find_facts(source).items() if name in _NUMERICS}


def _unusual(numerics):
    """The numerics that are not the defaults of `VisionTransformer`."""
    return {name: value for name, value in numerics.items() if value != _NUMERICS[name]}


def _axial_arguments(shapes):
    """What the tables of an AxialResNet's first unit show: `num_heads` and `input_shape`, of sides that 4 divides."""
    sides = [(shapes[_AXIS.format(axis)][0] + 1) // 2 for axis in ("height", "width")]
    *_, channels, width = shapes[STEM_ROOT]
    heads = 2 * width // shapes[_AXIS.format("height")][1]
    return {"num_heads": heads, "input_shape": (4 * sides[0], 4 * sides[1], channels)}


def _position_arguments(shapes, known_grid, source):
    """The grid of patches, and the arguments that the position embedding shows."""
    has_token = CLASS_TOKEN in shapes
    every_layer = any(re.match(rf"{_BLOCK}\d+/posembed_input/", name) for name in shapes)
    arguments = {"position_embedding_at": "every_layer"} if every_layer else {}
    if _POSITIONS_Y in shapes:
        arguments |= {"position_embedding": "learned2d", "class_token_position": True}
        return (shapes[_POSITIONS_Y][1], shapes[_POSITIONS_X][1]), arguments
    if _DISTANCES in shapes:
        length = (shapes[_DISTANCES][0] + 1) // 2
        grid, _ = position_embeddings.source_grid(length, has_token, (0, 0), known_grid) or (None, None)
        if grid is None:
            raise ValueError(
                f"The {length} tokens of the file are not those of a square: give the `grid` of the patches. "
                f"Received: {source}"
            )
        return grid, {"position_embedding": "relative", "class_token_position": True}
    if POSITIONS not in shapes:
        if known_grid is None:
            raise ValueError(f"The file has no positions: give the `grid` of the patches. Received: {source}")
        return known_grid, {"position_embedding": "sincos2d", "class_token_position": not has_token}
    rows = shapes[POSITIONS][1]
    # There is no model yet whose grid could be tried: (0, 0) fits nothing.
    grid, has_token_position = position_embeddings.source_grid(rows, has_token, (0, 0), known_grid) or (None, None)
    if grid is None:
        expected = "a square" if known_grid is None else known_grid
        raise ValueError(
            f"The {rows} positions of the file are not those of {expected}: give the `grid` of the patches. "
            f"Received: {source}"
        )
    return grid, {**arguments, "class_token_position": has_token_position or not has_token}


def architecture_of(shapes):
    """The architecture that weights show.

    Args:
        shapes: `{name in vit_jax: shape in vit_jax}`.

    Returns:
        A dict, as described at the top of this file.
    """

    def size(name, axis):
        shape = shapes.get(name, ())
        return shape[axis] if -len(shape) <= axis < len(shape) else None

    architecture = {"classes": size("head/bias", 0)}
    units = {}
    for name in shapes:
        if match := re.match(r"block(\d+)/unit(\d+)/", name):
            units[int(match[1])] = max(units.get(int(match[1]), 0), int(match[2]))
    stages = tuple(units[stage] for stage in sorted(units))
    has_stem = STEM_ROOT in shapes
    is_transformer = EMBEDDING in shapes or any(name.startswith("Transformer/") for name in shapes)
    if not is_transformer and (has_stem or BIT_ROOT in shapes):
        width = size(STEM_ROOT if has_stem else BIT_ROOT, -1)
        return {
            **architecture,
            "version": "axial" if _AXIS.format("height") in shapes else 1 if has_stem else 2,
            "depth": next((depth for depth, units in BIT_UNITS.items() if units == stages), None),
            "width_factor": None if width is None else width / 64 if width % 64 else width // 64,
        }
    blocks = {int(m[1]) for m in (re.match(re.escape(_BLOCK) + r"(\d+)/", name) for name in shapes) if m}
    return {
        **architecture,
        "patch_size": size(EMBEDDING, 0),
        "hidden_size": size(EMBEDDING, -1),
        "num_layers": max(blocks) + 1 if blocks else None,
        "mlp_dim": size(f"{_BLOCK}0/MlpBlock_0/Dense_0/bias", 0),
        "num_heads": size(_QUERY, 1) if len(shapes.get(_QUERY, ())) == 3 else None,
        "resnet_blocks": stages if has_stem else None,
        "representation_size": size("pre_logits/bias", 0) or 0,
        "classifier": "token" if CLASS_TOKEN in shapes else "map" if "MAPHead_0/probe" in shapes else "gap",
    }


def describe(architecture):
    """An architecture in words, for messages."""
    is_bit = "depth" in architecture
    if is_bit:
        numbers = {key: architecture[key] for key in ("depth", "width_factor", "version")}
    else:
        keys = ("patch_size", "hidden_size", "num_layers", "mlp_dim", "num_heads", "resnet_blocks")
        numbers = {key: architecture[key] for key in keys if architecture[key] is not None}
    name = size_name(architecture) or ("a BiT ResNet" if is_bit else "a Vision Transformer")
    return f"{name} ({', '.join(f'{key}={value}' for key, value in numbers.items())})"


def is_different(one, other):
    """Whether two architectures certainly differ; unknown numbers, pooling, `pre_logits` and classes do not count."""
    if ("depth" in one) != ("depth" in other):
        return True
    keys = {"patch_size", "hidden_size", "num_layers", "mlp_dim", "num_heads", "depth", "width_factor", "version"}
    for key in keys & one.keys():
        if one[key] is not None and other[key] is not None and one[key] != other[key]:
            return True
    return one.get("resnet_blocks") != other.get("resnet_blocks")


def fitting_arguments(missing, unused, shapes):
    """A sentence with the arguments of a model that a checkpoint would fit, " " before it; "" if no name shows any.

    Args:
        missing: names of arrays that the model has and the file has not.
        unused: names of arrays that the file has and the model has not.
        shapes: of the file, `{name: shape}`.
    """
    hints = []
    for name, hint in (
        ("pre_logits/kernel", "`representation_size={size}`"),
        ("MAPHead_0/probe", '`classifier="map"`'),
        (CLASS_TOKEN, 'a classifier that reads a class token, such as "token"'),
    ):
        if name in unused:
            hints.append(hint.format(size=shapes[name][-1]))
    if POSITIONS in unused:
        hints.append('`position_embedding="learned"`')
    if any(name.endswith("/x_embedding") for name in unused):
        hints.append('`position_embedding="learned2d"`')
    if any(name.endswith("/relative_embedding") for name in unused):
        hints.append('`position_embedding="relative"`')
    if any(re.search(r"encoderblock_\d+/posembed_input/", name) for name in unused):
        hints.append('`position_embedding_at="every_layer"`')
    if CLASS_TOKEN in missing:
        hints.append('`classifier="map"`' if "MAPHead_0/probe" in shapes else '`classifier="gap"`')
    if POSITIONS in missing and not any(OTHER_POSITIONS.search(name) for name in unused):
        hints.append('`position_embedding="sincos2d"`')
    if any(name in missing for name in HEAD):
        hints.append('`include_top=False`, or load with head="new"')
    if "pre_logits/kernel" in missing:
        hints.append("`representation_size=0`")
    return f" To keep everything, build the model with {' and '.join(hints)}." if hints else ""
