"""Chooses the devices to train on."""

import jax
import numpy as np

from keras_vit.data import hide_accelerators_from_tensorflow
from keras_vit.terminal import first_line
from keras_vit.training.hosts import workers

# The name of the only mesh axis. Batches are always sharded along this axis. The config field
# `shard` determines whether the optimizer state and the weights are sharded too.
AXIS = "data"

# The platforms that a strategy requires, and their other names in some versions of JAX.
_PLATFORMS = {"tpu": ("tpu",), "mirrored": ("gpu", "cuda", "rocm")}

# Maximum time, in seconds, that a finished process waits for the other processes. Process 0 may
# still be exporting the model.
_SHUTDOWN_SECONDS = 3600


def choose_mesh(name="auto", tpu_address=""):
    """Returns a `jax.sharding.Mesh` with one axis, "data", for a name in `engines.STRATEGIES`."""
    if tpu_address:
        raise ValueError(
            "`tpu_address` must be empty on the JAX backend; run the command on the TPU machine. "
            f"Received: tpu_address={tpu_address!r}"
        )
    hide_accelerators_from_tensorflow()  # TensorFlow prepares batches and writes exports on the CPU
    if name != "default" and workers() is not None:
        _join(*workers())
    try:
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        if name == "default":
            devices = jax.local_devices()[:1]  # the first of all may be that of another host
    except RuntimeError as error:
        raise ValueError(
            f"JAX cannot use its devices ({first_line(error)}). Received: strategy={name!r}"
        ) from error
    platform, *aliases = _PLATFORMS.get(name, (devices[0].platform,))
    if devices[0].platform not in (platform, *aliases):
        raise ValueError(
            f"No {platform.upper()} is visible to JAX, only {devices[0].device_kind!r}; pip "
            f'install "keras_vit[cpu,jax-{platform}]" on a machine with a {platform.upper()}. '
            f"Received: strategy={name!r}"
        )
    return jax.sharding.Mesh(np.array(devices), (AXIS,))


def _join(count, index, address):
    """Connects the processes listed in TF_CONFIG."""
    if jax.distributed.is_initialized():
        return
    try:
        jax.distributed.initialize(
            address,
            num_processes=count,
            process_id=index,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        )
    except RuntimeError as error:
        raise ValueError(
            f"The workers in TF_CONFIG cannot connect ({first_line(error)}). "
            f"Received: address={address}"
        ) from error


def platform_of(mesh):
    """Returns the platform of the devices of a mesh, such as "cpu" or "tpu"."""
    return mesh.devices.flat[0].platform
