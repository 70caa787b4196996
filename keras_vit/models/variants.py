"""The constructors of the named sizes, with one line of doc each.

The two-digit ending is the patch size in pixels, or for hybrids the stride at which the Transformer sees the image.
"""

from keras_vit.models.sizes import SIZES
from keras_vit.models.vision_transformer import VisionTransformer


def ViT_Ti16(name="vit_ti16", **kwargs):
    """ViT-Ti/16, 5.7M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["ViT-Ti/16"], name=name, **kwargs)


def ViT_S16(name="vit_s16", **kwargs):
    """ViT-S/16, 22.1M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["ViT-S/16"], name=name, **kwargs)


def ViT_S32(name="vit_s32", **kwargs):
    """ViT-S/32, 22.9M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["ViT-S/32"], name=name, **kwargs)


def ViT_B8(name="vit_b8", **kwargs):
    """ViT-B/8, 86.6M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["ViT-B/8"], name=name, **kwargs)


def ViT_B16(name="vit_b16", **kwargs):
    """ViT-B/16, 86.6M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["ViT-B/16"], name=name, **kwargs)


def ViT_B32(name="vit_b32", **kwargs):
    """ViT-B/32, 88.2M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["ViT-B/32"], name=name, **kwargs)


def ViT_L16(name="vit_l16", **kwargs):
    """ViT-L/16, 304.3M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["ViT-L/16"], name=name, **kwargs)


def ViT_L32(name="vit_l32", **kwargs):
    """ViT-L/32, 306.5M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["ViT-L/32"], name=name, **kwargs)


def ViT_H14(name="vit_h14", **kwargs):
    """ViT-H/14, 632.0M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["ViT-H/14"], name=name, **kwargs)


def R_ViT_Ti16(name="r_vit_ti16", **kwargs):
    """R+ViT-Ti/16, 6.3M parameters (AugReg). Despite its name it sees the image at stride 32."""
    return VisionTransformer(**SIZES["R+ViT-Ti/16"], name=name, **kwargs)


def R26_ViT_S32(name="r26_vit_s32", **kwargs):
    """R26+ViT-S/32, 36.4M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["R26+ViT-S/32"], name=name, **kwargs)


def R26_ViT_B32(name="r26_vit_b32", **kwargs):
    """R26+ViT-B/32, 101.4M parameters. Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["R26+ViT-B/32"], name=name, **kwargs)


def R50_ViT_B16(name="r50_vit_b16", **kwargs):
    """R50+ViT-B/16, 98.7M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["R50+ViT-B/16"], name=name, **kwargs)


def R50_ViT_B32(name="r50_vit_b32", **kwargs):
    """R50+ViT-B/32, 110.9M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["R50+ViT-B/32"], name=name, **kwargs)


def R50_ViT_L16(name="r50_vit_l16", **kwargs):
    """R50+ViT-L/16, 316.5M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["R50+ViT-L/16"], name=name, **kwargs)


def R50_ViT_L32(name="r50_vit_l32", **kwargs):
    """R50+ViT-L/32, 329.0M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**SIZES["R50+ViT-L/32"], name=name, **kwargs)
