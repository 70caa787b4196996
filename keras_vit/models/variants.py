"""The constructors of the named sizes, with one line of doc each.

The ending of a Vision Transformer's name is its patch size in pixels, or for hybrids the stride at which the
Transformer sees the image. A BiT ResNet is named by its depth and the factor on its channels.
"""

from typing import Any

import keras

from keras_vit.architectures import BIT_RESNETS, VISION_TRANSFORMERS
from keras_vit.models.bit_resnet import BiTResNet
from keras_vit.models.vision_transformer import VisionTransformer


def ViT_Ti16(name: str = "vit_ti16", **kwargs: Any) -> keras.Model:
    """ViT-Ti/16, 5.7M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["ViT-Ti/16"], name=name, **kwargs)


def ViT_S16(name: str = "vit_s16", **kwargs: Any) -> keras.Model:
    """ViT-S/16, 22.1M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["ViT-S/16"], name=name, **kwargs)


def ViT_S32(name: str = "vit_s32", **kwargs: Any) -> keras.Model:
    """ViT-S/32, 22.9M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["ViT-S/32"], name=name, **kwargs)


def ViT_B8(name: str = "vit_b8", **kwargs: Any) -> keras.Model:
    """ViT-B/8, 86.6M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["ViT-B/8"], name=name, **kwargs)


def ViT_B16(name: str = "vit_b16", **kwargs: Any) -> keras.Model:
    """ViT-B/16, 86.6M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["ViT-B/16"], name=name, **kwargs)


def ViT_B32(name: str = "vit_b32", **kwargs: Any) -> keras.Model:
    """ViT-B/32, 88.2M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["ViT-B/32"], name=name, **kwargs)


def ViT_L16(name: str = "vit_l16", **kwargs: Any) -> keras.Model:
    """ViT-L/16, 304.3M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["ViT-L/16"], name=name, **kwargs)


def ViT_L32(name: str = "vit_l32", **kwargs: Any) -> keras.Model:
    """ViT-L/32, 306.5M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["ViT-L/32"], name=name, **kwargs)


def ViT_H14(name: str = "vit_h14", **kwargs: Any) -> keras.Model:
    """ViT-H/14, 632.0M parameters (paper Table 1). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["ViT-H/14"], name=name, **kwargs)


def R_ViT_Ti16(name: str = "r_vit_ti16", **kwargs: Any) -> keras.Model:
    """R+ViT-Ti/16, 6.3M parameters (AugReg). Despite its name it sees the image at stride 32."""
    return VisionTransformer(**VISION_TRANSFORMERS["R+ViT-Ti/16"], name=name, **kwargs)


def R26_ViT_S32(name: str = "r26_vit_s32", **kwargs: Any) -> keras.Model:
    """R26+ViT-S/32, 36.4M parameters (AugReg). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["R26+ViT-S/32"], name=name, **kwargs)


def R26_ViT_B32(name: str = "r26_vit_b32", **kwargs: Any) -> keras.Model:
    """R26+ViT-B/32, 101.4M parameters. Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["R26+ViT-B/32"], name=name, **kwargs)


def R50_ViT_B16(name: str = "r50_vit_b16", **kwargs: Any) -> keras.Model:
    """R50+ViT-B/16, 98.7M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["R50+ViT-B/16"], name=name, **kwargs)


def R50_ViT_B32(name: str = "r50_vit_b32", **kwargs: Any) -> keras.Model:
    """R50+ViT-B/32, 110.9M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["R50+ViT-B/32"], name=name, **kwargs)


def R50_ViT_L16(name: str = "r50_vit_l16", **kwargs: Any) -> keras.Model:
    """R50+ViT-L/16, 316.5M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["R50+ViT-L/16"], name=name, **kwargs)


def R50_ViT_L32(name: str = "r50_vit_l32", **kwargs: Any) -> keras.Model:
    """R50+ViT-L/32, 329.0M parameters (paper Table 6). Arguments: see `VisionTransformer`."""
    return VisionTransformer(**VISION_TRANSFORMERS["R50+ViT-L/32"], name=name, **kwargs)


def BiT_R50x1(name: str = "bit_r50x1", **kwargs: Any) -> keras.Model:
    """BiT ResNet-50x1, 25.5M parameters. Arguments: see `BiTResNet`."""
    return BiTResNet(**BIT_RESNETS["BiT-R50x1"], name=name, **kwargs)


def BiT_R50x2(name: str = "bit_r50x2", **kwargs: Any) -> keras.Model:
    """BiT ResNet-50x2, 98.0M parameters. Arguments: see `BiTResNet`."""
    return BiTResNet(**BIT_RESNETS["BiT-R50x2"], name=name, **kwargs)


def BiT_R50x3(name: str = "bit_r50x3", **kwargs: Any) -> keras.Model:
    """BiT ResNet-50x3, 217.3M parameters. Arguments: see `BiTResNet`."""
    return BiTResNet(**BIT_RESNETS["BiT-R50x3"], name=name, **kwargs)


def BiT_R101x1(name: str = "bit_r101x1", **kwargs: Any) -> keras.Model:
    """BiT ResNet-101x1, 44.5M parameters. Arguments: see `BiTResNet`."""
    return BiTResNet(**BIT_RESNETS["BiT-R101x1"], name=name, **kwargs)


def BiT_R101x3(name: str = "bit_r101x3", **kwargs: Any) -> keras.Model:
    """BiT ResNet-101x3, 387.9M parameters. Arguments: see `BiTResNet`."""
    return BiTResNet(**BIT_RESNETS["BiT-R101x3"], name=name, **kwargs)


def BiT_R152x1(name: str = "bit_r152x1", **kwargs: Any) -> keras.Model:
    """BiT ResNet-152x1, 60.2M parameters. Arguments: see `BiTResNet`."""
    return BiTResNet(**BIT_RESNETS["BiT-R152x1"], name=name, **kwargs)


def BiT_R152x2(name: str = "bit_r152x2", **kwargs: Any) -> keras.Model:
    """BiT ResNet-152x2, 236.3M parameters. Arguments: see `BiTResNet`."""
    return BiTResNet(**BIT_RESNETS["BiT-R152x2"], name=name, **kwargs)


def BiT_R152x4(name: str = "bit_r152x4", **kwargs: Any) -> keras.Model:
    """BiT ResNet-152x4, 936.5M parameters. Arguments: see `BiTResNet`."""
    return BiTResNet(**BIT_RESNETS["BiT-R152x4"], name=name, **kwargs)


def BiT_R200x3(name: str = "bit_r200x3", **kwargs: Any) -> keras.Model:
    """BiT ResNet-200x3, 568.6M parameters. Arguments: see `BiTResNet`."""
    return BiTResNet(**BIT_RESNETS["BiT-R200x3"], name=name, **kwargs)
