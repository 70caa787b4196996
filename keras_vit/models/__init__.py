"""The model classes. For named sizes, see `keras_vit.families`."""

from keras_vit.models.any_model import load_keras_file
from keras_vit.models.axial_vision_transformer import AxialVisionTransformer
from keras_vit.models.backbone import Backbone  # noqa: F401, registers the class, so that Keras can load it
from keras_vit.models.bit_resnet import BiTResNet
from keras_vit.models.dense_prediction_transformer import DensePredictionTransformer
from keras_vit.models.linear_segmenter import LinearSegmenter
from keras_vit.models.masked_patches import MaskedPatchVisionTransformer
from keras_vit.models.naflex import NaFlexVisionTransformer
from keras_vit.models.text_transformer import TextTransformer
from keras_vit.models.two_towers import TwoTowers
from keras_vit.models.vision_transformer import VisionTransformer
from keras_vit.models.zero_shot import ClassEmbeddings  # noqa: F401, registers the class, so that Keras can load it

__all__ = [
    "AxialVisionTransformer",
    "BiTResNet",
    "DensePredictionTransformer",
    "LinearSegmenter",
    "MaskedPatchVisionTransformer",
    "NaFlexVisionTransformer",
    "TextTransformer",
    "TwoTowers",
    "VisionTransformer",
    "load_keras_file",
]
