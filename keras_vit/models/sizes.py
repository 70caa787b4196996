"""The named sizes of the Vision Transformer, as numbers.

The number behind the stroke is the patch size in pixels, or for hybrids the stride at which the Transformer sees the
image.
"""

_TI = {"hidden_size": 192, "num_layers": 12, "mlp_dim": 768, "num_heads": 3}
_S = {"hidden_size": 384, "num_layers": 12, "mlp_dim": 1536, "num_heads": 6}
_B = {"hidden_size": 768, "num_layers": 12, "mlp_dim": 3072, "num_heads": 12}
_L = {"hidden_size": 1024, "num_layers": 24, "mlp_dim": 4096, "num_heads": 16}
_H = {"hidden_size": 1280, "num_layers": 32, "mlp_dim": 5120, "num_heads": 16}

# The first three stages of R50/16 hold the units of a ResNet-50's fourth, which is left out (paper section 4.1).
_R26 = (2, 2, 2, 2)
_R50 = (3, 4, 6, 3)
_R50_STRIDE_16 = (3, 4, 9)


# What each size is called in the papers, and its arguments.
SIZES = {
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
    "R26+ViT-S/32": {"patch_size": 1, "resnet_blocks": _R26, **_S},
    "R26+ViT-B/32": {"patch_size": 1, "resnet_blocks": _R26, **_B},
    "R50+ViT-B/16": {"patch_size": 1, "resnet_blocks": _R50_STRIDE_16, **_B},
    "R50+ViT-B/32": {"patch_size": 1, "resnet_blocks": _R50, **_B},
    "R50+ViT-L/16": {"patch_size": 1, "resnet_blocks": _R50_STRIDE_16, **_L},
    "R50+ViT-L/32": {"patch_size": 1, "resnet_blocks": _R50, **_L},
}


def arguments(name, *, input_shape=(224, 224, 3), pre_logits=False, **changes):
    """The arguments of `VisionTransformer` for a size, as a config's `model` group has them: none is None.

    Args:
        name: what the papers call the size, "ViT-B/16".
        input_shape: `(height, width, channels)` in pixels.
        pre_logits: whether the head has the paper's hidden layer, of `hidden_size` units.
        **changes: further arguments, and others than the size's.

    Raises:
        ValueError: there is no such size.
    """
    if name not in SIZES:
        raise ValueError(f"The sizes known by name are {', '.join(SIZES)}. Received: {name!r}")
    size = SIZES[name]
    return {
        **size,
        "input_shape": tuple(input_shape),
        "classifier": "token",
        "representation_size": size["hidden_size"] if pre_logits else 0,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "stochastic_depth": 0.0,
        "head_bias": 0.0,
        **changes,
    }
