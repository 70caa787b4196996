"""Hybrid models: Vision Transformers on ResNet feature maps."""

from keras_vit.families import vit
from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, TI, B, L, S
from keras_vit.models.bit_resnet import BIT_UNITS

# R50/16 moves the units of a ResNet-50's fourth stage into the third (paper section 4.1).
_R50_16 = {"patch_size": 1, "resnet_blocks": (3, 4, 9)}
_R50_32 = {"patch_size": 1, "resnet_blocks": BIT_UNITS[50]}
_R26 = {"patch_size": 1, "resnet_blocks": BIT_UNITS[26]}

# Except in R+ViT-Ti/16, the number after the slash is the token stride in pixels. `patch_size` is
# in cells of the ResNet's feature map.
_size = Sizes()
# The token stride is 32, despite the name. The stem is only the ResNet's root.
R_ViT_Ti16 = _size("R+ViT-Ti/16", "6.3M parameters (AugReg)", patch_size=8, resnet_blocks=(), **TI)
R26_ViT_S32 = _size("R26+ViT-S/32", "36.4M parameters (AugReg)", **_R26, **S)
R26_ViT_B32 = _size("R26+ViT-B/32", "101.4M parameters", **_R26, **B)
R50_ViT_B16 = _size("R50+ViT-B/16", "98.7M parameters", **_R50_16, **B)
R50_ViT_B32 = _size("R50+ViT-B/32", "110.9M parameters", **_R50_32, **B)
R50_ViT_L16 = _size("R50+ViT-L/16", "316.5M parameters", **_R50_16, **L)
R50_ViT_L32 = _size("R50+ViT-L/32", "329.0M parameters", **_R50_32, **L)

FAMILY = _size.register(
    identity=IDENTITY,
    published=(
        *vit.rows(
            _size.table, "imagenet21k", 21843, 224, ("R26+ViT-B/32", "R50+ViT-B/16", "R50+ViT-L/32")
        ),
        *vit.rows(_size.table, "imagenet21k+imagenet2012", 1000, 384, ("R50+ViT-B/16",)),
        vit.augreg("R50+ViT-L/32", "medium1", 0.1, 0.1, 0.1),
        vit.augreg("R26+ViT-S/32", "light1", 0.1),
        vit.augreg("R+ViT-Ti/16", "none", 0.03),
    ),
    rules={"augreg": vit.AUGREG_RULE},
    reference="https://github.com/google-research/vision_transformer",
)
