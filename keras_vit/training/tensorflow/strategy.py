"""Choosing the devices to train on."""

import os
import socket
from pathlib import Path

import tensorflow as tf

from keras_vit.training.engine import STRATEGIES
from keras_vit.training.hosts import workers

# Seconds in which a TPU's address must accept a connection. TensorFlow itself would wait for minutes.
TPU_CONNECT_SECONDS = 4


def choose_strategy(name="auto", tpu_address=""):
    """The distribution strategy for the devices of this machine.

    Args:
        name: "auto" (a TPU if there is one, else the workers of TF_CONFIG, else all GPUs if there are several, else one
            device), "default" (one device), "mirrored" (all GPUs), "multi_worker" (TF_CONFIG) or "tpu".
        tpu_address: the name of a TPU, or its "grpc://host:port"; "" for TPU_NAME, or else this machine's.

    Returns:
        A `tf.distribute.Strategy`. On a TPU or several workers, this must come before every other TensorFlow operation
        of the process.

    Raises:
        ValueError: the name is not known, or the device is not there.
    """
    if name not in STRATEGIES:
        raise ValueError(f"`strategy` must be one of {', '.join(STRATEGIES)}. Received: strategy={name!r}")
    if name == "tpu" or (name == "auto" and (tpu_address or _has_tpu())):
        return _tpu_strategy(tpu_address)
    if name == "multi_worker" or (name == "auto" and workers() is not None):
        if workers() is None:
            raise ValueError("TF_CONFIG does not name the workers. Received: strategy='multi_worker'")
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_physical_devices("GPU")
    if name == "mirrored" and not gpus:
        raise ValueError("No GPU is visible to TensorFlow. Received: strategy='mirrored'")
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def _has_tpu():
    """Whether this machine has a TPU, or TPU_NAME names one; no server is asked."""
    return "TPU_NAME" in os.environ or any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def _tpu_strategy(address):
    if not address and not _has_tpu():
        raise ValueError(
            "There is no TPU: `tpu_address` is empty, TPU_NAME is not set, and there is no /dev/accel* or /dev/vfio. "
            "Received: strategy='tpu'"
        )
    address = address or os.environ.get("TPU_NAME", "local")
    if address.startswith("grpc://"):
        _check_connection(address)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise ValueError(f"The TPU cannot be used ({reason}). Received: tpu_address={address!r}") from error


def _check_connection(address):
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=TPU_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ValueError(f"No TPU answers there ({error}). Received: tpu_address={address!r}") from error
