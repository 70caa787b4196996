"""The TensorFlow engine, built on `tf.distribute`."""

from keras_vit.training.tensorflow.engine import TensorFlowEngine
from keras_vit.training.tensorflow.strategy import choose_strategy

__all__ = ["TensorFlowEngine", "choose_strategy"]
