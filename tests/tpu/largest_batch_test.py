"""The largest batch by a few blocks, on devices whose memory is a formula."""

import pytest

from keras_vit.tpu import largest_batch as module
from keras_vit.tpu import table
from keras_vit.tpu.largest_batch import BLOCKS, COMPILED, EXTRAPOLATED, at_depth, at_size, largest_batch
from keras_vit.tpu.program import Program
from keras_vit.tpu.search import grid
from keras_vit.tpu.table import Row
from keras_vit.tpu.topologies import get_topology

MIB = 2**20
IMAGE_BYTES = 4 * (224 * 224 * 3 + 1000 + 1)
SIZES = []  # that were compiled: (blocks, images of a device)


def _program(blocks, images, training=True, update_bytes=0):
    """On lines over blocks, and over images beside what is there once."""
    state = (30 + 50 * blocks) * MIB
    memory = (2 * blocks + 3) * MIB * images if training else 4 * MIB * images
    return Program(
        True,
        argument_bytes=state + IMAGE_BYTES * images,
        temporary_bytes=memory,
        program_bytes=(1 + blocks) * MIB,
        flops=float(blocks * images * 10**10),
        bytes_accessed=float(2 * state + update_bytes + (blocks + 1) * images * 2**30),
    )


class _Programs:
    def __init__(self, config, task, inputs, topology, total_steps):
        assert config.precision == "mixed_bfloat16" and inputs.image_shape == (224, 224, 3)
        self.blocks = config.model.get("num_layers", 1)
        self.gradient_bytes = self.blocks * 10 * MIB
        self.topology = topology
        self._devices = topology.num_devices

    def batch_bytes(self, size):
        return size * IMAGE_BYTES

    def train(self, batch_size, accumulate_steps):
        return self._compile(batch_size // self._devices, True)

    def evaluation(self, batch_size, accumulate_steps):
        return self._compile(batch_size // self._devices, False)

    def _compile(self, images, training):
        SIZES.append((self.blocks, images))
        program = _program(self.blocks, images, training, self.gradient_bytes * training)
        if program.memory_bytes > self.topology.device.memory_bytes:
            return Program(False, "RESOURCE_EXHAUSTED", True)
        return program


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    SIZES.clear()
    module.make_programs.cache_clear()
    monkeypatch.setattr(module, "programs_class", lambda: _Programs)
    monkeypatch.setattr(table.compiler, "check_installed", lambda: None)
    yield
    module.make_programs.cache_clear()


def test_a_deeper_model_is_on_the_line_through_two():
    assert at_depth({n: _program(n, 7) for n in BLOCKS}, 12) == _program(12, 7)


def test_another_batch_has_the_same_state_and_update():
    whole, gradients = _program(12, 100, update_bytes=120 * MIB), 120 * MIB
    other = at_size(whole, 100, 110, IMAGE_BYTES, gradients)
    exact = _program(12, 110, update_bytes=120 * MIB)
    assert other.memory_bytes == exact.memory_bytes
    assert (other.flops, other.bytes_accessed) == pytest.approx((exact.flops, exact.bytes_accessed))


@pytest.mark.parametrize("model", ["ViT-Ti/16", "ViT-B/16", "ViT-L/16"])
@pytest.mark.parametrize("training", [True, False])
def test_it_is_the_largest_that_the_whole_model_would_have_room_for(model, training):
    largest = largest_batch(model, "v3:2x2", 224, training)
    depth = 24 if model == "ViT-L/16" else 12
    limit = get_topology("v3:2x2").device.memory_bytes
    assert largest.method == EXTRAPOLATED
    assert _program(depth, largest.images, training).memory_bytes <= limit
    assert _program(depth, largest.images + grid(largest.images), training).memory_bytes > limit
    assert largest.program.memory_bytes == pytest.approx(_program(depth, largest.images, training).memory_bytes, 1e-3)
    assert largest.gradient_bytes == depth * 10 * MIB * training
    # Whatever the first guess is, few compiles do, and the last ones are near the result.
    assert {blocks for blocks, _ in SIZES} == set(BLOCKS) and len(SIZES) <= 10
    assert 0.7 < largest.images / SIZES[-1][1] < 1.4


def test_a_short_model_is_compiled_whole(monkeypatch):
    largest = largest_batch("BiT-R50x1", "v3:2x2", 224, True)
    assert largest.method == COMPILED and (1, largest.images) in SIZES
    assert largest.program == _program(1, largest.images, update_bytes=10 * MIB)
    limit = get_topology("v3:2x2").device.memory_bytes
    assert _program(1, int(largest.images * 17 / 16) + 8).memory_bytes > limit
    assert largest.gradient_bytes == 10 * MIB


def test_what_does_not_fit_or_compile_says_so(monkeypatch):
    for error, expected in [("RESOURCE_EXHAUSTED", "not one image fits"), ("no", "no")]:
        refused = Program(False, error, out_of_memory=error != "no")
        monkeypatch.setattr(_Programs, "_compile", lambda self, images, training, refused=refused: refused)
        for model in ("ViT-H/14", "BiT-R50x1"):
            row = table.compute(Row(model, "v3:2x2", 224, "training"))
            assert (row.batch_per_device, row.error) == (0, expected)


def test_a_cell_has_the_estimate_at_its_batch():
    row = table.compute(Row("ViT-B/16", "v3:2x2", 224, "training"))
    device = get_topology("v3:2x2").device
    program = _program(12, row.batch_per_device, update_bytes=120 * MIB)
    seconds = program.bytes_accessed / device.bandwidth + 2 * 7 / 8 * 120 * MIB / device.interconnect
    assert row.images_per_second == pytest.approx(row.batch_per_device / seconds, rel=1e-3)
    assert row.method == EXTRAPOLATED and not row.error
