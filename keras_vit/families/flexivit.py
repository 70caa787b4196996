"""FlexiViT, whose weights can be loaded into models of any patch size."""

from keras_vit.families.registry import Sizes
from keras_vit.families.shared import B, L, S, big_vision_row

_size = Sizes(
    patch_size=16,
    class_token_position=False,
    position_resampling="bilinear_antialias",
)
FlexiViT_S = _size("FlexiViT-S", "21.7M parameters without a head at patch size 16", **S)
FlexiViT_B = _size("FlexiViT-B", "85.8M parameters without a head at patch size 16", **B)
FlexiViT_L = _size("FlexiViT-L", "303.3M parameters without a head at patch size 16", **L)


def _rows():
    for letter in "SBL":
        names = [(f"i1k{epochs}", 1000) for epochs in ("", "_90ep", "_300ep", "_600ep")]
        names += [(f"i21k_{epochs}ep", 21843) for epochs in (90, 300, 1000) if letter == "B"]
        for name, classes in names:
            path = f"flexivit/flexivit_{letter.lower()}_{name}"
            yield big_vision_row("flexivit", path, f"FlexiViT-{letter}", classes, 240)


FAMILY = _size.register(
    identity=(
        "num_layers",
        "hidden_size",
        "resnet_blocks",
        "class_token_position",
        "position_resampling",
    ),
    published=tuple(_rows()),
    reference="https://github.com/google-research/big_vision",
)
