"""The form of a graph for the kind of device that runs it."""

import functools

import keras
import tensorflow as tf

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.layer_norm import LayerNormalization
from keras_vit.layers.validation import check_choice

DEVICES = ("cpu", "any")
# TensorFlow then packs the weights of bfloat16 products once instead of in each call.
ENVIRONMENT = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1"


def chosen_device(device: str | None) -> str:
    """Returns the given device; for None, "any" if a GPU or TPU is found, otherwise "cpu".

    Raises:
        ValueError: the device is unknown.
    """
    if device is None:
        return "any" if {"gpu", "tpu"} & set(found_devices()) else "cpu"
    check_choice("device", device, DEVICES)
    return device


def found_devices() -> list[str]:
    """Returns the kinds of devices that TensorFlow or the Keras backend finds, such as "cpu"."""
    # On JAX, accelerators may be hidden from TensorFlow, or unknown to it.
    kinds = {name.partition(":")[0] for name in keras.distribution.list_devices()}
    kinds |= {device.device_type.lower() for device in tf.config.list_physical_devices()}
    return sorted(kinds)


def use_forms_for_cpus(model: keras.Model) -> None:
    """Makes the layers of a model compute in forms for which TensorFlow has one operation on CPUs.

    These are LayerNorms over the last axis and the softmax of attention in bfloat16, which oneDNN
    computes in float32. Layers of subclasses with their own computation stay as they are.
    """
    for layer in model._flatten_layers(include_self=False):
        softmax = getattr(type(layer), "softmax", None)
        if softmax is MultiHeadAttention.softmax and layer.compute_dtype == "bfloat16":
            layer.softmax = _softmax
        is_plain = type(layer) in (LayerNormalization, keras.layers.LayerNormalization)
        if is_plain and layer.axis in (-1, [-1]) and not layer.rms_scaling:
            layer.call = functools.partial(_fused_layer_norm, layer)


def _softmax(scores, mask, dtype):
    if mask is not None:
        scores = tf.where(mask, scores, tf.cast(-1e9, scores.dtype))
    return tf.nn.softmax(tf.cast(scores, dtype))


def _fused_layer_norm(layer, inputs):
    if inputs.dtype not in (tf.float32, tf.bfloat16):
        return type(layer).call(layer, inputs)
    # On CPUs, TensorFlow computes this batch norm, whose "channels" are the tokens, as one
    # LayerNorm of oneDNN. `tf.ensure_shape` would prevent that, and `tf.nn.fused_batch_norm` would
    # raise epsilon to 1e-5.
    shape = tf.shape(inputs)
    count = tf.reduce_prod(shape[:-1])
    outputs = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(inputs, (1, count, inputs.shape[-1], 1)),
        scale=tf.ones(count),
        offset=tf.zeros(count),
        mean=tf.zeros([0]),
        variance=tf.zeros([0]),
        epsilon=layer.epsilon,
        data_format="NCHW",
        is_training=True,
    ).y
    outputs = tf.reshape(outputs, shape)
    outputs.set_shape(inputs.shape)
    if layer.scale:
        outputs *= tf.cast(layer.gamma, outputs.dtype)
    if layer.center:
        outputs += tf.cast(layer.beta, outputs.dtype)
    return tf.cast(outputs, layer.compute_dtype)
