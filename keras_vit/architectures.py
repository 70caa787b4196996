"""Every named size, as numbers: Vision Transformers, hybrids and BiT ResNets. The one place where a size is written.

A size is called as in the papers, "ViT-B/16", "R50+ViT-B/16" or "BiT-R50x1". The number behind the slash is the patch
size in pixels, or for hybrids the stride at which the Transformer sees the image. "ViT-B_16" is the name for files.
"""

from typing import Any

_TI = {"hidden_size": 192, "num_layers": 12, "mlp_dim": 768, "num_heads": 3}
_S = {"hidden_size": 384, "num_layers": 12, "mlp_dim": 1536, "num_heads": 6}
_B = {"hidden_size": 768, "num_layers": 12, "mlp_dim": 3072, "num_heads": 12}
_L = {"hidden_size": 1024, "num_layers": 24, "mlp_dim": 4096, "num_heads": 16}
_H = {"hidden_size": 1280, "num_layers": 32, "mlp_dim": 5120, "num_heads": 16}

# Units in each stage of a ResNet, by depth. 8 is for small images: its stride is 8, that of the others 32.
BIT_UNITS = {
    8: (1, 1),
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
# The first three stages of R50/16 hold the units of a ResNet-50's fourth, which is left out (paper section 4.1).
_R50_STRIDE_16 = (3, 4, 9)

# The arguments of `VisionTransformer` for each size. `resnet_blocks=()` is a stem of the root alone.
VISION_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "ViT-Ti/16": {"patch_size": 16, **_TI},
    "ViT-S/16": {"patch_size": 16, **_S},
    "ViT-S/32": {"patch_size": 32, **_S},
    "ViT-B/8": {"patch_size": 8, **_B},
    "ViT-B/16": {"patch_size": 16, **_B},
    "ViT-B/32": {"patch_size": 32, **_B},
    "ViT-L/16": {"patch_size": 16, **_L},
    "ViT-L/32": {"patch_size": 32, **_L},
    "ViT-H/14": {"patch_size": 14, **_H},
    "R+ViT-Ti/16": {"patch_size": 8, "resnet_blocks": (), **_TI},
    "R26+ViT-S/32": {"patch_size": 1, "resnet_blocks": BIT_UNITS[26], **_S},
    "R26+ViT-B/32": {"patch_size": 1, "resnet_blocks": BIT_UNITS[26], **_B},
    "R50+ViT-B/16": {"patch_size": 1, "resnet_blocks": _R50_STRIDE_16, **_B},
    "R50+ViT-B/32": {"patch_size": 1, "resnet_blocks": BIT_UNITS[50], **_B},
    "R50+ViT-L/16": {"patch_size": 1, "resnet_blocks": _R50_STRIDE_16, **_L},
    "R50+ViT-L/32": {"patch_size": 1, "resnet_blocks": BIT_UNITS[50], **_L},
}
# The arguments of `BiTResNet` for each size.
BIT_RESNETS: dict[str, dict[str, Any]] = {
    "BiT-R50x1": {"depth": 50, "width_factor": 1},
    "BiT-R50x2": {"depth": 50, "width_factor": 2},
    "BiT-R50x3": {"depth": 50, "width_factor": 3},
    "BiT-R101x1": {"depth": 101, "width_factor": 1},
    "BiT-R101x3": {"depth": 101, "width_factor": 3},
    "BiT-R152x1": {"depth": 152, "width_factor": 1},
    "BiT-R152x2": {"depth": 152, "width_factor": 2},
    "BiT-R152x4": {"depth": 152, "width_factor": 4},
    "BiT-R200x3": {"depth": 200, "width_factor": 3},
}
# Attention heads by hidden size; files in PyTorch's layout do not show them.
NUM_HEADS = {size["hidden_size"]: size["num_heads"] for size in (_TI, _S, _B, _L, _H)}


def canonical_name(name):
    """The name of a size as it is spelled here: "R50x1", as the paper's tables have it, is "BiT-R50x1".

    Other names, also unknown ones, are returned as they are.
    """
    return f"BiT-{name}" if f"BiT-{name}" in BIT_RESNETS else name


def file_name(name):
    """The name of a size in file names, where a slash cannot stand: "ViT-B/16" is "ViT-B_16"."""
    return name.replace("/", "_")


def is_bit(name):
    """Whether a name is that of a BiT ResNet."""
    return canonical_name(name) in BIT_RESNETS


def find_vision_transformer(*, patch_size, num_layers, hidden_size, resnet_blocks=None):
    """The name of the size that has these numbers, or None."""
    numbers = (patch_size, num_layers, hidden_size, resnet_blocks)
    keys = ("patch_size", "num_layers", "hidden_size", "resnet_blocks")
    return next((name for name, size in VISION_TRANSFORMERS.items() if tuple(map(size.get, keys)) == numbers), None)


def model_config(name, *, pre_logits=False, **changes):
    """The `config.task` and `config.model` of a size, for `recipes.defaults`.

    Args:
        name: such as "ViT-B/16", "R50+ViT-B/16" or "BiT-R50x1" (also "R50x1").
        pre_logits: whether the head has the paper's hidden layer, of `hidden_size` units. BiT ResNets have none.
        **changes: further arguments of the model, or others than the size's; none is None.

    Returns:
        `{"task": ..., "model": {...}}`.

    Raises:
        ValueError: there is no such size, or `pre_logits` is set for a BiT ResNet.
    """
    name = canonical_name(name)
    if name in BIT_RESNETS:
        if pre_logits:
            raise ValueError(f"A BiT ResNet has no `pre_logits`. Received: pre_logits={pre_logits}, name={name!r}")
        return {"task": "resnet_classification", "model": {**BIT_RESNETS[name], **changes}}
    if name not in VISION_TRANSFORMERS:
        known = ", ".join([*VISION_TRANSFORMERS, *BIT_RESNETS])
        raise ValueError(f"The sizes known by name are {known}. Received: name={name!r}")
    size = VISION_TRANSFORMERS[name]
    stem = {"stem": "resnet"} if "resnet_blocks" in size else {}
    head = {"representation_size": size["hidden_size"]} if pre_logits else {}
    return {"task": "classification", "model": {**size, **stem, **head, **changes}}
