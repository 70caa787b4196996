"""The Vision Transformer, its axial form and the BiT ResNet; `keras_vit.families` has the named sizes."""

from keras_vit.models.any_model import load_keras_file
from keras_vit.models.axial_vision_transformer import AxialVisionTransformer
from keras_vit.models.backbone import Backbone  # noqa: F401, so that Keras can load files with it
from keras_vit.models.bit_resnet import BiTResNet
from keras_vit.models.vision_transformer import VisionTransformer
from keras_vit.models.zero_shot import ClassEmbeddings  # noqa: F401, so that files with it can be loaded

__all__ = ["AxialVisionTransformer", "BiTResNet", "VisionTransformer", "load_keras_file"]
