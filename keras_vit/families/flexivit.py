"""FlexiViT, which supports any patch size when its weights are loaded."""

from keras_vit.checkpoints.registry import PublishedWeights
from keras_vit.families.registry import Sizes
from keras_vit.families.vit import B, L, S
from keras_vit.models.vision_transformer import VisionTransformer

__all__ = ["FlexiViT_B", "FlexiViT_L", "FlexiViT_S"]

# 16 is the default patch size.
_PARTS = {"patch_size": 16, "class_token_position": False, "position_resampling": "bilinear_antialias"}
_size = Sizes(VisionTransformer)
FlexiViT_S = _size("FlexiViT-S", "21.7M parameters at patch size 16", **_PARTS, **S)
FlexiViT_B = _size("FlexiViT-B", "85.8M parameters at patch size 16", **_PARTS, **B)
FlexiViT_L = _size("FlexiViT-L", "303.3M parameters at patch size 16", **_PARTS, **L)


def _rows():
    for letter in "SBL":
        names = [(f"i1k{epochs}", 1000) for epochs in ("", "_90ep", "_300ep", "_600ep")]
        names += [(f"i21k_{epochs}ep", 21843) for epochs in (90, 300, 1000) if letter == "B"]
        for name, classes in names:
            name = f"flexivit_{letter.lower()}_{name}"
            url = f"https://storage.googleapis.com/big_vision/flexivit/{name}.npz"
            yield PublishedWeights("flexivit", name, f"FlexiViT-{letter}", url, classes, 240)


FAMILY = _size.register(
    identity=("num_layers", "hidden_size", "resnet_blocks", "class_token_position", "position_resampling"),
    published=tuple(_rows()),
    reference="https://github.com/google-research/big_vision",
)
