"""Chooses the devices to train on."""

import contextlib
import logging
import os
from pathlib import Path

import tensorflow as tf

from keras_vit.terminal import first_line
from keras_vit.training.hosts import workers

log = logging.getLogger(__name__)

# PCI ids of TPUs, from `jax/_src/hardware_utils.py`. Other Google devices, such as network cards,
# have other ids.
GOOGLE_PCI_VENDOR = "0x1ae0"
TPU_PCI_DEVICES = ("0x0027", "0x005e", "0x0056", "0x0062", "0x0063", "0x006f", "0x0076")


def choose_strategy(name="auto", tpu_address=""):
    """Returns the `tf.distribute.Strategy` for a name in `engines.STRATEGIES`.

    Must run before other TensorFlow operations.
    """
    tpu_address = tpu_address or os.environ.get("TPU_NAME", "")
    if name == "tpu" or (name == "auto" and tpu_address):
        return _tpu_strategy(tpu_address)
    if name == "auto" and _tpu_chips():
        try:
            return _tpu_strategy("")
        except ValueError as error:  # for example, this TensorFlow does not support TPUs
            log.warning("this machine has a TPU that is not used: %s", error)
    if name == "multi_worker" or (name == "auto" and workers() is not None):
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_physical_devices("GPU")
    if name == "mirrored" and not gpus:
        raise ValueError("No GPU is visible to TensorFlow. Received: strategy='mirrored'")
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def _tpu_chips(devices="/sys/bus/pci/devices"):
    """Returns the device folders of TPUs, found by PCI id: /dev/accel0 and /dev/vfio/0 may belong
    to other devices."""
    chips = []
    for device in sorted(Path(devices).glob("*")):
        with contextlib.suppress(OSError):
            ids = tuple((device / name).read_text().strip() for name in ("vendor", "device"))
            if ids[0] == GOOGLE_PCI_VENDOR and ids[1] in TPU_PCI_DEVICES:
                chips.append(device)
    return chips


def _tpu_strategy(address):
    if not address and not _tpu_chips():
        raise ValueError(
            "No TPU was found: `tpu_address` is empty, TPU_NAME is not set, and no PCI device is "
            "a TPU. Received: strategy='tpu'"
        )
    address = address or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        raise ValueError(
            f"The TPU cannot be used ({first_line(error)}). Received: tpu_address={address!r}"
        ) from error
