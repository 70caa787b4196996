"""Axial models of the paper's appendix D.6. No weights are published; files are those of `checkpoints.save`."""

from keras_vit.checkpoints import names
from keras_vit.checkpoints.registry import Family
from keras_vit.families import vit
from keras_vit.families.bit import resnet_arguments
from keras_vit.families.registry import register
from keras_vit.models.axial_vision_transformer import AxialVisionTransformer
from keras_vit.models.bit_resnet import AxialResNet

_AXIS = "block1/unit1/attention_{}/axis_embedding"
_ROW = "/encoderblock_0/row/"


def infer_transformer(shapes, facts):
    """The arguments of an AxialVisionTransformer; see `Family.infer`."""
    if not any(_ROW in name for name in shapes):
        return None
    rows = {name.replace("/row/", "/"): shape for name, shape in shapes.items()}
    arguments = vit.infer(rows, facts)
    fixed = ("classifier", "position_embedding", "position_embedding_at", "class_token_position")
    return {name: value for name, value in arguments.items() if name not in fixed}


def infer_resnet(shapes, facts):
    """The arguments of an AxialResNet, whose sides 4 divides; see `Family.infer`."""
    if _AXIS.format("height") not in shapes:
        return None
    sides = [2 * (shapes[_AXIS.format(axis)][0] + 1) for axis in ("height", "width")]
    *_, channels, width = shapes[names.STEM_ROOT]
    heads = 2 * width // shapes[_AXIS.format("height")][1]
    return {**resnet_arguments(shapes), "num_heads": heads, "input_shape": (*sides, channels)}


register(Family(AxialVisionTransformer, infer=infer_transformer, reference="paper appendix D.6"))
register(Family(AxialResNet, infer=infer_resnet, reference="https://github.com/google-research/scenic"))
