"""The layers that a Vision Transformer is made of, each usable alone in any Keras model."""

from keras_vit.layers.attention_pooling import AttentionPooling
from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.input_preprocessing import InputPreprocessing
from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.layers.patches import Patches
from keras_vit.layers.position_embedding import PositionEmbedding
from keras_vit.layers.preactivation_resnet import PreActivationResNet
from keras_vit.layers.resnet_stem import ResNetStem
from keras_vit.layers.sincos_position_embedding import SinCosPositionEmbedding
from keras_vit.layers.transformer_block import TransformerBlock

__all__ = [
    "AttentionPooling",
    "ClassToken",
    "InputPreprocessing",
    "PatchEncoder",
    "Patches",
    "PositionEmbedding",
    "PreActivationResNet",
    "ResNetStem",
    "SinCosPositionEmbedding",
    "TransformerBlock",
]
