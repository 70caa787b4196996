"""The Vision Transformer, the BiT ResNet and their axial forms; `keras_vit.families` has the named sizes."""

from keras_vit.models.axial_vision_transformer import AxialVisionTransformer
from keras_vit.models.bit_resnet import AxialResNet, BiTResNet
from keras_vit.models.keras_file import load_keras_file
from keras_vit.models.vision_transformer import VisionTransformer

__all__ = ["AxialResNet", "AxialVisionTransformer", "BiTResNet", "VisionTransformer", "load_keras_file"]
