"""The largest batch of a few that are compiled, on devices whose memory is a formula."""

import pytest

from keras_vit.tpu import largest_batch as module
from keras_vit.tpu import table
from keras_vit.tpu.largest_batch import largest_batch
from keras_vit.tpu.program import Program
from keras_vit.tpu.search import MOST_IMAGES
from keras_vit.tpu.table import Row
from keras_vit.tpu.topologies import get_topology

MIB = 2**20
IMAGE_BYTES = 4 * (224 * 224 * 3 + 1000 + 1)
GRADIENT_BYTES = 120 * MIB
LIMIT = get_topology("v3:2x2").device.memory_bytes
SIZES = []  # that were compiled: images of a device


def _program(images, per_image, bend=0):
    """What is there for any batch, and `per_image` MiB for each image; a third more if there are over `bend` images."""
    per_image *= 4 / 3 if 0 < bend < images else 1
    return Program(
        True,
        argument_bytes=600 * MIB + IMAGE_BYTES * images,
        temporary_bytes=int(per_image * MIB) * images,
        program_bytes=13 * MIB,
        flops=float(images * 10**10),
        bytes_accessed=float(2 * 600 * MIB + GRADIENT_BYTES + images * 2**30),
    )


class _Programs:
    per_image, bend = 30, 0
    says_what_it_needs = True

    def __init__(self, config, task, inputs, topology, total_steps):
        assert config.precision == "mixed_bfloat16" and inputs.image_shape == (224, 224, 3)
        self.gradient_bytes = GRADIENT_BYTES
        self.topology = topology

    def batch_bytes(self, size):
        return size * IMAGE_BYTES

    def train(self, batch_size, accumulate_steps, machine_code):
        assert not machine_code
        images = batch_size // self.topology.num_devices
        SIZES.append(images)
        program = _program(images, self.per_image, self.bend)
        if program.memory_bytes > LIMIT:
            required = program.memory_bytes if self.says_what_it_needs else 0
            return Program(False, "RESOURCE_EXHAUSTED", True, required_bytes=required)
        return program

    evaluation = train


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    SIZES.clear()
    monkeypatch.setattr(module, "programs_class", lambda: _Programs)
    monkeypatch.setattr(table.compiler, "check_installed", lambda: None)


@pytest.mark.parametrize("per_image", [3, 30, 60, 700, 9000])
@pytest.mark.parametrize("says_what_it_needs", [True, False])
@pytest.mark.parametrize("bend", [0, 200])
def test_it_was_compiled_and_fits_and_half_as_many_more_do_not(monkeypatch, per_image, says_what_it_needs, bend):
    """Also where memory bends upwards at some number of images, so that the line through a smaller one is wrong."""
    monkeypatch.setattr(_Programs, "per_image", per_image)
    monkeypatch.setattr(_Programs, "bend", bend)
    monkeypatch.setattr(_Programs, "says_what_it_needs", says_what_it_needs)
    largest = largest_batch("ViT-B/16", "v3:2x2", 224, training=True)
    assert largest.images in SIZES and len(SIZES) == len(set(SIZES)) <= 12
    assert largest.program == _program(largest.images, per_image, bend)
    assert largest.program.memory_bytes <= LIMIT < _program(int(1.5 * largest.images) + 1, per_image, bend).memory_bytes
    assert largest.gradient_bytes == GRADIENT_BYTES


def test_the_first_number_may_be_given():
    expected = largest_batch("ViT-B/16", "v3:2x2", 224, training=True).images
    SIZES.clear()
    row = table.compute(Row("ViT-B/16", "v3:2x2", 224, "training", batch_per_device=expected))
    assert SIZES == [expected] == [row.batch_per_device]


def test_no_more_images_are_asked_for_than_there_is_use_for(monkeypatch):
    monkeypatch.setattr(_Programs, "per_image", 0.01)
    assert largest_batch("ViT-Ti/16", "v3:2x2", 224, training=False).images <= MOST_IMAGES
    assert max(SIZES) <= MOST_IMAGES


def test_what_does_not_fit_or_compile_says_so(monkeypatch):
    for error, expected in [("RESOURCE_EXHAUSTED", "not one image fits"), ("no", "no")]:
        refused = Program(False, error, out_of_memory=error != "no")
        monkeypatch.setattr(_Programs, "train", lambda self, batch_size, steps, machine_code, refused=refused: refused)
        for model in ("ViT-H/14", "BiT-R50x1", "R50+ViT-B/16", "R+ViT-Ti/16"):
            row = table.compute(Row(model, "v3:2x2", 224, "training"))
            assert (row.batch_per_device, row.error) == (0, expected)


def test_a_cell_has_the_estimate_at_its_batch():
    row = table.compute(Row("ViT-B/16", "v3:2x2", 224, "training"))
    device = get_topology("v3:2x2").device
    program = _program(row.batch_per_device, 30)
    seconds = program.bytes_accessed / device.bandwidth + 2 * 7 / 8 * GRADIENT_BYTES / device.interconnect
    assert row.images_per_second == pytest.approx(row.batch_per_device / seconds, rel=5e-3)
    assert row.batch_per_device in SIZES and not row.error
