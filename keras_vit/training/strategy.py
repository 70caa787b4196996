"""Choosing the devices to train on."""

import json
import os
import socket
from pathlib import Path

import tensorflow as tf

STRATEGIES = ("auto", "default", "mirrored", "multi_worker", "tpu")

# Seconds that a TPU's address may take to answer, before TensorFlow is asked, which would wait for minutes.
TPU_ANSWERS_WITHIN = 4


def choose_strategy(name="auto", tpu_address=""):
    """The distribution strategy for what is there.

    Args:
        name: "auto" (a TPU if there is one, else the workers of TF_CONFIG, else all GPUs if there are several, else one
            device), "default" (one device), "mirrored" (all GPUs), "multi_worker" (TF_CONFIG) or "tpu".
        tpu_address: the name of a TPU, or its "grpc://host:port"; "" for TPU_NAME, or else this machine's.

    Returns:
        A `tf.distribute.Strategy`. It must come before every other TensorFlow operation of the process where a TPU or
        several workers are.

    Raises:
        ValueError: the name is not known, or there is no such device.
    """
    if name not in STRATEGIES:
        raise ValueError(f"`strategy` must be one of {', '.join(STRATEGIES)}. Received: strategy={name!r}")
    if name == "tpu" or (name == "auto" and (tpu_address or _has_tpu())):
        return _tpu_strategy(tpu_address)
    if name == "multi_worker" or (name == "auto" and workers() is not None):
        if workers() is None:
            raise ValueError("TF_CONFIG does not say who the workers are. Received: strategy='multi_worker'")
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_physical_devices("GPU")
    if name == "mirrored" and not gpus:
        raise ValueError("No GPU is visible to TensorFlow. Received: strategy='mirrored'")
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def workers():
    """How many processes train together, and which of them this is, as TF_CONFIG says.

    Returns:
        `(count, index)`; the first one, 0, writes what there is to write. None without a TF_CONFIG.

    Raises:
        ValueError: TF_CONFIG is not what TensorFlow asks for.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return None
    try:
        given = json.loads(text)
        cluster, task = given["cluster"], given["task"]
        known = {kind: len(cluster.get(kind, ())) for kind in ("chief", "worker")}
        kind, index = task["type"], int(task["index"])
        good = set(cluster) <= set(known) and 0 <= index < known[kind]
    except (KeyError, TypeError, ValueError, AttributeError):
        good = False
    if not good:
        raise ValueError(
            'TF_CONFIG must be like {"cluster": {"worker": ["host:port", "other:port"]}, "task": {"type": "worker", '
            f'"index": 0}}}}, with nothing but workers and perhaps a chief. Received: TF_CONFIG={text}'
        )
    return sum(known.values()), index + (known["chief"] if kind == "worker" else 0)


def is_chief():
    """Whether this process writes what there is to write; of several workers the first one does."""
    return (workers() or (1, 0))[1] == 0


def hosts(strategy):
    """How many processes share every batch, and which of them this is: `(count, index)`."""
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return workers() if several else (1, 0)


def _has_tpu():
    """Whether this machine has a TPU, or is told of one; answered without asking any server."""
    return "TPU_NAME" in os.environ or any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def _tpu_strategy(address):
    if not address and not _has_tpu():
        raise ValueError(
            "No TPU is here: no `tpu_address` is given, TPU_NAME is not set, and there is no /dev/accel* or /dev/vfio. "
            "Received: strategy='tpu'"
        )
    address = address or os.environ.get("TPU_NAME", "local")
    if address.startswith("grpc://"):
        _check_that_it_answers(address)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise ValueError(f"The TPU cannot be used ({reason}). Received: tpu_address={address!r}") from error


def _check_that_it_answers(address):
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=TPU_ANSWERS_WITHIN).close()
    except (OSError, ValueError) as error:
        raise ValueError(f"No TPU answers there ({error}). Received: tpu_address={address!r}") from error
