"""TPU slices by name, and what the vendor publishes about their devices."""

import dataclasses
import math
import re

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Device:
    """One device of a slice as JAX and TensorFlow list them: a core of a TPU v2, v3 or v4, a chip of the others.

    Attributes:
        kind: JAX's name of it.
        devices_per_chip: 2 where a device is a core, else 1.
        memory_bytes: what the compiler lets a program use, by its own message; the published size is a little more.
        peak_flops: published dense bfloat16 FLOP/s.
        bandwidth: published bytes a second of the device's memory.
        interconnect: published bytes a second between chips, all links, both directions; a device's share of them.
    """

    kind: str
    devices_per_chip: int
    memory_bytes: int
    peak_flops: float
    bandwidth: float
    interconnect: float


# Rates from https://cloud.google.com/tpu/docs/v4 (v5e, v5p, v6e), which are of a chip. Of v2 and v3: Jouppi et al., "A
# domain-specific supercomputer for training deep neural networks" (2020); four links of 496 and 656 Gbit/s a chip.
DEVICES = {
    "v2": Device("TPU v2", 2, int(7.48 * GIB), 23e12, 350e9, 4 * 496e9 / 8 / 2),
    "v3": Device("TPU v3", 2, int(15.48 * GIB), 61.5e12, 450e9, 4 * 656e9 / 8 / 2),
    "v4": Device("TPU v4", 2, int(15.25 * GIB), 275e12 / 2, 1200e9 / 2, 2400e9 / 8 / 2),
    "v5e": Device("TPU v5 lite", 1, int(15.75 * GIB), 197e12, 819e9, 1600e9 / 8),
    "v5p": Device("TPU v5", 1, int(95.73 * GIB), 459e12, 2765e9, 4800e9 / 8),
    "v6e": Device("TPU v6 lite", 1, int(31.24 * GIB), 918e12, 1638e9, 3200e9 / 8),
}
"""What is published of a device of each generation, by the name that a topology begins with."""
# The sides of a slice: two numbers of chips where the network is a plane, three where it is a cube.
DIMENSIONS = {"v2": 2, "v3": 2, "v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}
EXAMPLES = "v2:2x2, v3:2x2, v4:2x2x1, v5e:2x4, v5p:2x2x1, v6e:1x1"


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice.

    Attributes:
        name: such as "v3:2x2", the slice of 2 by 2 chips that Cloud TPU calls v3-8.
        device: what each of its devices is.
        num_devices: how many.
    """

    name: str
    device: Device
    num_devices: int


def get_topology(name: str) -> Topology:
    """The slice of a name.

    Raises:
        ValueError: it is not the name of a slice; the message has the forms of names.
    """
    generation, _, shape = str(name).partition(":")
    sides = [int(side) for side in shape.split("x")] if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape) else []
    if generation not in DEVICES or len(sides) != DIMENSIONS[generation]:
        raise ValueError(
            f"`topology` must be a generation and the chips along each side, such as {EXAMPLES}. "
            f"Received: topology={name!r}"
        )
    device = DEVICES[generation]
    return Topology(name, device, math.prod(sides) * device.devices_per_chip)
