"""The layers that a Vision Transformer is made of, each usable alone in any Keras model."""

from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.layers.patches import Patches
from keras_vit.layers.position_embedding import PositionEmbedding
from keras_vit.layers.resnet_stem import ResNetStem
from keras_vit.layers.transformer_block import TransformerBlock

__all__ = [
    "ClassToken",
    "PatchEncoder",
    "Patches",
    "PositionEmbedding",
    "ResNetStem",
    "TransformerBlock",
]
