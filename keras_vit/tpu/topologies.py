"""Defines TPU slices by name, with the published peak rates of their devices."""

import dataclasses
import math
import re

import keras

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Device:
    """A device that libtpu compiles for: a core on TPU v2, v3 and v4, a chip on later generations.

    On TPU v4, JAX combines the two cores of a chip into one device.
    """

    kind: str
    devices_per_chip: int
    memory_bytes: int  # available to programs
    peak_flops: float  # dense bfloat16 FLOP/s
    bandwidth: float  # HBM bytes/s
    interconnect: float  # bytes/s over all links
    chip_config: str = "default"  # libtpu's name for the division of a chip into devices


# The rates per chip of v4 and later are from https://cloud.google.com/tpu/docs/v4, /v5e, /v5p and
# /v6e. The rates of v2 and v3 are from Jouppi et al., "A domain-specific supercomputer for training
# deep neural networks" (2020), with four links per chip of 496 Gbit/s (v2) or 656 Gbit/s (v3).
DEVICES = {
    "v2": Device("TPU v2", 2, int(7.48 * GIB), 23e12, 350e9, 4 * 496e9 / 8 / 2),
    "v3": Device("TPU v3", 2, int(15.48 * GIB), 61.5e12, 450e9, 4 * 656e9 / 8 / 2),
    "v4": Device("TPU v4", 2, int(15.25 * GIB), 275e12 / 2, 1200e9 / 2, 2400e9 / 8 / 2),
    "v5e": Device("TPU v5 lite", 1, int(15.75 * GIB), 197e12, 819e9, 1600e9 / 8),
    "v5p": Device("TPU v5", 1, int(95.73 * GIB), 459e12, 2765e9, 4800e9 / 8),
    "v6e": Device("TPU v6 lite", 1, int(31.24 * GIB), 918e12, 1638e9, 3200e9 / 8),
}
"""Maps TPU generations, the prefixes of topology names, to devices."""
MEGACORE = Device("TPU v4", 1, int(30.75 * GIB), 275e12, 1200e9, 2400e9 / 8, "megacore")
"""The device of JAX on TPU v4: both cores of a chip, which share their memory."""
# The number of dimensions of each generation's network. A topology name has one side for each
# dimension.
DIMENSIONS = {"v2": 2, "v3": 2, "v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}
EXAMPLES = "v2:2x2, v3:2x2, v4:2x2x1, v5e:2x4, v5p:2x2x1, v6e:1x1"


@dataclasses.dataclass(frozen=True)
class Topology:
    """A TPU slice. For example, "v3:2x2" has 2 x 2 chips with 8 devices, and Cloud TPU calls it
    v3-8."""

    name: str
    device: Device
    num_devices: int


def get_topology(name: str, backend: str | None = None) -> Topology:
    """Returns the TPU slice with a given name.

    Args:
        name: name of a slice, such as "v3:2x2".
        backend: "tensorflow" or "jax", whose devices differ on TPU v4; None for the active Keras
            backend.

    Raises:
        ValueError: the name is invalid. The message contains examples.
    """
    generation, _, shape = str(name).partition(":")
    sides = shape.split("x")
    is_shape = all(re.fullmatch(r"[1-9]\d*", side) for side in sides)
    if not is_shape or len(sides) != DIMENSIONS.get(generation):
        raise ValueError(f"`topology` must be a name like {EXAMPLES}. Received: topology={name!r}")
    is_jax = (backend or keras.backend.backend()) == "jax"
    device = MEGACORE if generation == "v4" and is_jax else DEVICES[generation]
    return Topology(name, device, math.prod(map(int, sides)) * device.devices_per_chip)
