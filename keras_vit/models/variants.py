"""The named sizes of the Vision Transformer: numbers, and one line of doc each.

The two-digit ending is the patch size in pixels, or for hybrids the stride at which the Transformer sees the image.
"""

from keras_vit.models.vision_transformer import VisionTransformer

_TI = {"hidden_size": 192, "num_layers": 12, "mlp_dim": 768, "num_heads": 3}
_S = {"hidden_size": 384, "num_layers": 12, "mlp_dim": 1536, "num_heads": 6}
_B = {"hidden_size": 768, "num_layers": 12, "mlp_dim": 3072, "num_heads": 12}
_L = {"hidden_size": 1024, "num_layers": 24, "mlp_dim": 4096, "num_heads": 16}
_H = {"hidden_size": 1280, "num_layers": 32, "mlp_dim": 5120, "num_heads": 16}

# The first three stages of R50/16 hold the units of a ResNet-50's fourth, which is left out (paper section 4.1).
_R26 = (2, 2, 2, 2)
_R50 = (3, 4, 6, 3)
_R50_STRIDE_16 = (3, 4, 9)


def ViT_Ti16(name="vit_ti16", **kwargs):
    """ViT-Ti/16, 5.7M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=16, **_TI, name=name, **kwargs)


def ViT_S16(name="vit_s16", **kwargs):
    """ViT-S/16, 22.1M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=16, **_S, name=name, **kwargs)


def ViT_S32(name="vit_s32", **kwargs):
    """ViT-S/32, 22.9M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=32, **_S, name=name, **kwargs)


def ViT_B8(name="vit_b8", **kwargs):
    """ViT-B/8, 86.6M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=8, **_B, name=name, **kwargs)


def ViT_B16(name="vit_b16", **kwargs):
    """ViT-B/16, 86.6M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=16, **_B, name=name, **kwargs)


def ViT_B32(name="vit_b32", **kwargs):
    """ViT-B/32, 88.2M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=32, **_B, name=name, **kwargs)


def ViT_L16(name="vit_l16", **kwargs):
    """ViT-L/16, 304.3M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=16, **_L, name=name, **kwargs)


def ViT_L32(name="vit_l32", **kwargs):
    """ViT-L/32, 306.5M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=32, **_L, name=name, **kwargs)


def ViT_H14(name="vit_h14", **kwargs):
    """ViT-H/14, 632.0M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=14, **_H, name=name, **kwargs)


def R_ViT_Ti16(name="r_vit_ti16", **kwargs):
    """R+ViT-Ti/16, 6.3M parameters (AugReg). Despite its name it sees the image at stride 32."""
    return VisionTransformer(patch_size=8, resnet_blocks=(), **_TI, name=name, **kwargs)


def R26_ViT_S32(name="r26_vit_s32", **kwargs):
    """R26+ViT-S/32, 36.4M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=1, resnet_blocks=_R26, **_S, name=name, **kwargs)


def R26_ViT_B32(name="r26_vit_b32", **kwargs):
    """R26+ViT-B/32, 101.4M parameters. Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=1, resnet_blocks=_R26, **_B, name=name, **kwargs)


def R50_ViT_B16(name="r50_vit_b16", **kwargs):
    """R50+ViT-B/16, 98.7M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=1, resnet_blocks=_R50_STRIDE_16, **_B, name=name, **kwargs)


def R50_ViT_B32(name="r50_vit_b32", **kwargs):
    """R50+ViT-B/32, 110.9M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=1, resnet_blocks=_R50, **_B, name=name, **kwargs)


def R50_ViT_L16(name="r50_vit_l16", **kwargs):
    """R50+ViT-L/16, 316.5M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=1, resnet_blocks=_R50_STRIDE_16, **_L, name=name, **kwargs)


def R50_ViT_L32(name="r50_vit_l32", **kwargs):
    """R50+ViT-L/32, 329.0M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(patch_size=1, resnet_blocks=_R50, **_L, name=name, **kwargs)
