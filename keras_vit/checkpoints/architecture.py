"""Which model an array of shapes is of."""

import re

from keras_vit.architectures import BIT_UNITS
from keras_vit.checkpoints.names import CLASS_TOKEN, EMBEDDING
from keras_vit.checkpoints.published import ARCHITECTURES

_BLOCK = "Transformer/encoderblock_"
_QUERY = "/MultiHeadDotProductAttention_0/query/kernel"


def architecture(shapes):
    """What the shapes of a model's weights say about it.

    Args:
        shapes: `{name in the original: shape in the original}`.

    Returns:
        Those arguments of `VisionTransformer` (or `depth`, `width_factor` and `version` of `BiTResNet`) that the
        shapes show; what they do not show, such as the heads in a PyTorch file, is None.
    """

    def size(name, axis):
        shape = shapes.get(name, ())
        return shape[axis] if -len(shape) <= axis < len(shape) else None

    found = {"classes": size("head/bias", 0)}
    units = {}
    for name in shapes:
        if match := re.match(r"block(\d+)/unit(\d+)/", name):
            units[int(match[1])] = max(units.get(int(match[1]), 0), int(match[2]))
    stages = tuple(units[stage] for stage in sorted(units))
    stem = "conv_root/kernel" in shapes
    transformer = EMBEDDING in shapes or any(name.startswith("Transformer/") for name in shapes)
    if not transformer and (stem or "root_block/conv_root/kernel" in shapes):
        root = "conv_root/kernel" if stem else "root_block/conv_root/kernel"
        found["version"] = 1 if stem else 2
        found["depth"] = next((depth for depth, u in BIT_UNITS.items() if u == stages), None)
        found["width_factor"] = None if size(root, -1) is None else size(root, -1) // 64
        return found
    blocks = {int(m[1]) for m in (re.match(re.escape(_BLOCK) + r"(\d+)/", name) for name in shapes) if m}
    found["patch_size"] = size(EMBEDDING, 0)
    found["hidden_size"] = size(EMBEDDING, -1)
    found["num_layers"] = max(blocks) + 1 if blocks else None
    found["mlp_dim"] = size(f"{_BLOCK}0/MlpBlock_0/Dense_0/bias", 0)
    found["num_heads"] = size(f"{_BLOCK}0{_QUERY}", 1) if len(shapes.get(f"{_BLOCK}0{_QUERY}", ())) == 3 else None
    found["resnet_blocks"] = stages if stem else None
    found["representation_size"] = size("pre_logits/bias", 0) or 0
    found["classifier"] = (
        "token" if CLASS_TOKEN in shapes else "map" if "MAPHead_0/probe" in shapes else "gap"
    )  # fmt: skip
    return found


def variant(found):
    """The name of the published size that an architecture is, such as "ViT-B_16", or None."""
    if "depth" in found:
        known = found["depth"] and found["width_factor"]
        return f"R{found['depth']}x{found['width_factor']}" if known else None
    key = tuple(found[part] for part in ("patch_size", "num_layers", "hidden_size", "resnet_blocks"))
    return next((name for name, numbers in ARCHITECTURES.items() if numbers == key), None)


def describe(found):
    """An architecture in words, for messages."""
    if "depth" in found:
        numbers = {key: found[key] for key in ("depth", "width_factor", "version")}
    else:
        keys = ("patch_size", "hidden_size", "num_layers", "mlp_dim", "num_heads", "resnet_blocks")
        numbers = {key: found[key] for key in keys if found[key] is not None}
    name = variant(found) or ("a BiT ResNet" if "depth" in found else "a Vision Transformer")
    return f"{name} ({', '.join(f'{key}={value}' for key, value in numbers.items())})"


def differ(one, other):
    """Whether two architectures are certainly not the same; heads and classes do not count, nor what is unknown."""
    if ("depth" in one) != ("depth" in other):
        return True
    keys = {"patch_size", "hidden_size", "num_layers", "mlp_dim", "num_heads", "depth", "width_factor", "version"}
    for key in keys & one.keys():
        if one[key] is not None and other[key] is not None and one[key] != other[key]:
            return True
    return one.get("resnet_blocks") != other.get("resnet_blocks")
