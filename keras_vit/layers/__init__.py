"""Vision Transformer layers, each usable on its own in any Keras model.

In the docstrings, "the paper" is Dosovitskiy et al., "An Image is Worth 16x16 Words", and "the
reference" is the authors' JAX code,
[`vit_jax`](https://github.com/google-research/vision_transformer).
"""

from keras_vit.layers.attention_pooling import AttentionPooling
from keras_vit.layers.axial import AxialTransformerBlock
from keras_vit.layers.input_preprocessing import InputPreprocessing
from keras_vit.layers.patches import PatchEncoder, Patches
from keras_vit.layers.positions import (
    NoPositionEmbedding,
    PositionEmbedding,
    PositionEmbedding2D,
    SinCosPositionEmbedding,
)
from keras_vit.layers.preactivation_resnet import PreActivationResNet
from keras_vit.layers.resnet_stem import ResNetStem
from keras_vit.layers.tokens import ClassToken, LayerScale, RegisterTokens
from keras_vit.layers.transformer_block import TransformerBlock

__all__ = [
    "AttentionPooling",
    "AxialTransformerBlock",
    "ClassToken",
    "InputPreprocessing",
    "LayerScale",
    "NoPositionEmbedding",
    "PatchEncoder",
    "Patches",
    "PositionEmbedding",
    "PositionEmbedding2D",
    "PreActivationResNet",
    "RegisterTokens",
    "ResNetStem",
    "SinCosPositionEmbedding",
    "TransformerBlock",
]
