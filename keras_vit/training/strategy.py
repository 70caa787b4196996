"""Choosing the devices to train on."""

import os
from pathlib import Path

import tensorflow as tf

STRATEGIES = ("auto", "default", "mirrored", "tpu")


def choose_strategy(name="auto"):
    """The distribution strategy for what is there.

    Args:
        name: "auto" (a TPU if there is one, else all GPUs if there are several, else one device), "default" (one
            device), "mirrored" (all GPUs) or "tpu".

    Returns:
        A `tf.distribute.Strategy`. It must come before every other TensorFlow operation of the process where a TPU is.

    Raises:
        ValueError: the name is not known, or there is no such device.
    """
    if name not in STRATEGIES:
        raise ValueError(f"`strategy` must be one of {', '.join(STRATEGIES)}. Received: strategy={name!r}")
    if name == "tpu" or (name == "auto" and _has_tpu()):
        return _tpu_strategy()
    gpus = tf.config.list_physical_devices("GPU")
    if name == "mirrored" and not gpus:
        raise ValueError("No GPU is visible to TensorFlow. Received: strategy='mirrored'")
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def _has_tpu():
    """Whether this machine has a TPU, or is told of one; answered without asking any server."""
    return "TPU_NAME" in os.environ or any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def _tpu_strategy():
    if not _has_tpu():
        raise ValueError(
            "No TPU is here: TPU_NAME is not set and there is no /dev/accel* or /dev/vfio. Received: strategy='tpu'"
        )
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME", "local"))
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
