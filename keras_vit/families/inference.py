"""Infers the arguments of a model from the shapes of its weights and from facts about it."""

import re

from keras_vit.checkpoints import names, position_embeddings
from keras_vit.families.registry import sizes
from keras_vit.layers.resnet_stem import stem_stride_of

_BLOCK_0 = "Transformer/encoderblock_0"
_POSITIONS_X, _POSITIONS_Y = (f"Transformer/posembed_input/{axis}_embedding" for axis in "xy")
_DISTANCES = f"{_BLOCK_0}/MultiHeadDotProductAttention_0/relative_embedding"


def dimension(shapes, name, axis):
    """Returns the length of an axis of an array, or None if the array does not exist."""
    shape = shapes.get(name, ())
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def head_arguments(shapes):
    """Returns the arguments `include_top` and, for weights with a head, `classes`."""
    classes = dimension(shapes, names.HEAD[0], -1)
    return {"include_top": False} if classes is None else {"include_top": True, "classes": classes}


def infer(shapes, facts):
    """Infers the arguments of a Vision Transformer; see `Family.infer`."""
    has_blocks = any(name.startswith("Transformer/") for name in shapes)
    if names.EMBEDDING not in shapes and not has_blocks:
        return None
    # Count the blocks instead of trusting their numbers, because a file may contain any numbers.
    blocks = {
        match[1] for name in shapes if (match := re.match(r"Transformer/encoderblock_(\d+)/", name))
    }
    query = f"{_BLOCK_0}/MultiHeadDotProductAttention_0/query/kernel"
    arguments = {
        "patch_size": dimension(shapes, names.EMBEDDING, 0),
        "hidden_size": dimension(shapes, names.EMBEDDING, -1),
        "num_layers": len(blocks) or None,
        "mlp_dim": dimension(shapes, f"{_BLOCK_0}/MlpBlock_0/Dense_0/kernel", 1),
        "num_heads": shapes[query][1] if len(shapes.get(query, ())) == 3 else facts.num_heads,
        "representation_size": dimension(shapes, "pre_logits/bias", 0) or 0,
        "classifier": _classifier(shapes, facts),
        **head_arguments(shapes),
    }
    # Add the differences from the paper's model, then derive the input shape from the position
    # grid.
    arguments |= _parts(shapes, facts)
    arguments["num_heads"] = arguments["num_heads"] or _published_heads(arguments)
    if facts.exact_gelu:
        arguments["exact_gelu"] = True
    if facts.epsilon not in (None, 1e-6):
        arguments["epsilon"] = facts.epsilon
    positions, grid = _positions(shapes, facts, arguments["patch_size"])
    arguments |= positions
    stride = arguments["patch_size"]
    if names.STEM_ROOT in shapes:
        arguments["resnet_blocks"] = stages(shapes)
        stride = stride and stride * stem_stride_of(arguments["resnet_blocks"])
    if grid is not None and stride:
        channels = shapes[names.first_kernel(shapes)][2]
        arguments["input_shape"] = (*(side * stride for side in grid), channels)
    return arguments


def _classifier(shapes, facts):
    """Returns the argument `classifier`."""
    has_token = names.CLASS_TOKEN in shapes
    if "MAPHead_0/probe" in shapes:
        if facts.pool == "map" and (has_token or "register_tokens" in shapes):
            raise ValueError(
                "`global_pool` must not be map in a model with a class token or registers, "
                "because timm's pooling ignores these tokens. Received: global_pool='map'"
            )
        return "map"
    pool = facts.pool
    if pool is None and names.HEAD[0] in shapes:
        pool = facts.head_pool
    if pool == "":
        return "token_unpooled" if has_token else "unpooled"
    if pool == "avg" or (pool is None and "fc_norm/scale" in shapes):
        return "token_gap" if has_token else "gap"
    return "token" if has_token else "gap"


def _parts(shapes, facts):
    """Returns the arguments of optional parts that differ from the paper's model."""
    parts = {
        "num_registers": dimension(shapes, "register_tokens", 1),
        "layer_scale": 1e-5 if f"{_BLOCK_0}/LayerScale_0/scale" in shapes else None,
        "mlp": "swiglu" if f"{_BLOCK_0}/MlpBlock_0/Dense_gate/kernel" in shapes else facts.mlp,
        "mlp_norm": f"{_BLOCK_0}/MlpBlock_0/LayerNorm_0/scale" in shapes,
        "qk_norm": f"{_BLOCK_0}/MultiHeadDotProductAttention_0/query_norm/scale" in shapes,
        "pre_norm": "Transformer/pre_norm/scale" in shapes,
        "attention_norm": f"{_BLOCK_0}/MultiHeadDotProductAttention_0/out_norm/scale" in shapes,
        "pool_norm": "fc_norm/scale" in shapes,
        "distilled": names.DISTILLATION_TOKEN in shapes,
        "rotary": facts.rotary,
        "position_resampling": facts.position_resampling,
    }
    arguments = {name: value for name, value in parts.items() if value}
    for argument, kernel in (
        ("patch_bias", names.EMBEDDING),
        ("mlp_bias", f"{_BLOCK_0}/MlpBlock_0/Dense_0/kernel"),
    ):
        if kernel in shapes and kernel.replace("kernel", "bias") not in shapes:
            arguments[argument] = False
    pattern = r"/MultiHeadDotProductAttention_0/([qkvo])\w+/bias$"
    biases = {match[1] for name in shapes if (match := re.search(pattern, name))}
    if biases != set("qkvo"):
        arguments["attention_bias"] = "".join(letter for letter in "qkvo" if letter in biases)
    return arguments


def _published_heads(arguments):
    """Returns the number of heads of the published size with equal dimensions, or None."""
    known = ("patch_size", "hidden_size", "num_layers", "mlp_dim")
    has_token = arguments["classifier"].startswith("token")
    for size in sizes().values():
        has_same_mlp = (size.get("mlp") == "swiglu") == (arguments.get("mlp") == "swiglu")
        has_same_dimensions = all(size.get(name) == arguments[name] for name in known)
        is_other_tower = size.get("classifier") == "map" and has_token
        if "num_heads" in size and has_same_mlp and has_same_dimensions and not is_other_tower:
            return size["num_heads"]
    return None


def stages(shapes):
    """Returns the number of units in each stage of a ResNet."""
    units: dict[str, set] = {}
    for name in shapes:
        if match := re.match(r"block(\d+)/unit(\d+)/", name):
            units.setdefault(match[1], set()).add(match[2])
    # Sort the digits as numbers, but without `int`, which refuses thousands of digits.
    in_order = sorted(units, key=lambda digits: (len(digits), digits))
    return tuple(len(units[stage]) for stage in in_order)


def _positions(shapes, facts, patch_size):
    """Returns the arguments of the position embedding, and the patch grid or None."""
    has_token = names.CLASS_TOKEN in shapes
    arguments = {}
    if any(re.match(r"Transformer/encoderblock_\d+/posembed_input/", name) for name in shapes):
        arguments["position_embedding_at"] = "every_layer"
    if _POSITIONS_Y in shapes:
        arguments["position_embedding"] = "learned2d"
        return arguments, (shapes[_POSITIONS_Y][1], shapes[_POSITIONS_X][1])
    if names.POSITIONS not in shapes and facts.rotary:
        arguments["position_embedding"] = "none"
        return arguments, facts.grid or (patch_size and (224 // patch_size,) * 2)
    if names.POSITIONS not in shapes and _DISTANCES not in shapes:
        arguments |= {"position_embedding": "sincos2d", "class_token_position": not has_token}
        return arguments, facts.grid
    if names.POSITIONS in shapes:
        arguments["position_embedding"] = "learned"
        rows = dimension(shapes, names.POSITIONS, 1)
    else:
        arguments["position_embedding"] = "relative"
        rows = (shapes[_DISTANCES][0] + 1) // 2
    # The model is not built yet, so its grid is unknown. Pass (0, 0), which matches no file.
    class_tokens = names.count_class_tokens(shapes)
    found = position_embeddings.source_grid(
        rows or 0, class_tokens, (0, 0), facts.grid, facts.class_row
    )
    grid, token_positions = found or (None, 1)
    arguments["class_token_position"] = bool(token_positions) or not has_token
    return arguments, grid
