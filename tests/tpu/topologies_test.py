"""Tests of TPU slices and their devices."""

import keras
import pytest

from keras_vit.tpu.topologies import DEVICES, DIMENSIONS, MEGACORE, get_topology


@pytest.mark.parametrize(
    ("name", "devices", "kind"),
    [
        ("v3:4x4", 32, "TPU v3"),
        ("v4:2x2x1", 8, "TPU v4"),
        ("v5e:2x4", 8, "TPU v5 lite"),
        ("v5p:2x2x1", 4, "TPU v5"),
    ],
)
def test_slice_has_the_expected_devices(name, devices, kind):
    topology = get_topology(name, "tensorflow")
    assert (topology.num_devices, topology.device.kind) == (devices, kind)


def test_jax_combines_the_cores_of_a_v4_chip():
    topology = get_topology("v4:2x2x1", "jax")
    device = topology.device
    assert (topology.num_devices, device.peak_flops, device.bandwidth) == (4, 275e12, 1200e9)
    assert device.memory_bytes > 2 * DEVICES["v4"].memory_bytes
    assert device.chip_config == "megacore"
    assert get_topology("v3:2x2", "jax") == get_topology("v3:2x2", "tensorflow")
    assert (get_topology("v4:2x2x1").device is MEGACORE) == (keras.backend.backend() == "jax")


@pytest.mark.parametrize("name", ["v3", "v3:2x2x2", "v7x:2x2", "v3:0x2", None])
def test_rejects_unknown_slices(name):
    with pytest.raises(ValueError, match="like v2:2x2, v3:2x2"):
        get_topology(name)


# Published TFLOP/s and GB/s of each chip.
CHIPS = {
    "v2": (46, 700),
    "v3": (123, 900),
    "v4": (275, 1200),
    "v5e": (197, 819),
    "v5p": (459, 2765),
    "v6e": (918, 1638),
}


def test_device_specs_are_per_device():
    assert set(DEVICES) == set(CHIPS) == set(DIMENSIONS)
    for generation, (teraflops, bandwidth) in CHIPS.items():
        device = DEVICES[generation]
        assert device.peak_flops * device.devices_per_chip == teraflops * 1e12
        assert device.bandwidth * device.devices_per_chip == bandwidth * 1e9
