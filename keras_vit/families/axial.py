"""Axial-ViT (paper appendix D.6).

No weights are published; models load files written by `checkpoints.save`.
"""

from keras_vit.families import inference
from keras_vit.families.registry import Sizes
from keras_vit.models.axial_vision_transformer import AxialVisionTransformer

_ROW = "/encoderblock_0/row/"


def infer(shapes, facts):
    """Infers the arguments of an `AxialVisionTransformer`; see `Family.infer`."""
    if not any(_ROW in name for name in shapes):
        return None
    rows = {name.replace("/row/", "/"): shape for name, shape in shapes.items()}
    arguments = inference.infer(rows, facts)
    fixed = ("classifier", "position_embedding", "position_embedding_at", "class_token_position")
    return {name: value for name, value in arguments.items() if name not in fixed}


Sizes(AxialVisionTransformer).register(infer=infer, reference="paper appendix D.6")
