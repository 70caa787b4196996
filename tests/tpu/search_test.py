"""Tests of the search for the largest batch. A memory formula replaces the compiler."""

import math

import pytest

from keras_vit.tpu.program import Program
from keras_vit.tpu.search import MOST_IMAGES, grid, largest_batch

LIMIT = 1000


def _device(memory_of, reports=True):
    """Returns a fake `compile_size` and the list to which it appends the compiled sizes.

    With `reports=False`, an out-of-memory error does not report the required memory.
    """
    compiled = []

    def compile_size(number):
        compiled.append(number)
        memory = int(memory_of(number))
        if memory <= LIMIT:
            return Program(True, temporary_bytes=memory)
        return Program(False, "RESOURCE_EXHAUSTED", True, required_bytes=memory if reports else 0)

    return compile_size, compiled


# Memory as a function of the number of images.
CURVES = {
    "linear": lambda n: 100 + 3.7 * n,
    "little memory per image": lambda n: 100 + 0.5 * n,
    "less memory per image from 200 images": lambda n: 100 + 3.7 * n - max(0, 3 * (n - 200)),
    "jumps every 64 images": lambda n: 100 + 3.7 * (n // 64 * 64),
    "much memory per image": lambda n: 100 + 150 * n,
}


@pytest.mark.parametrize("unit", [1, 4, 25])
@pytest.mark.parametrize("reports", [True, False], ids=["memory known", "memory unknown"])
@pytest.mark.parametrize("curve", CURVES)
def test_largest_batch_is_close_to_the_limit(curve, reports, unit):
    memory_of = CURVES[curve]
    for first in (1, 8, 48, 250, 4096):
        compile_size, compiled = _device(memory_of, reports)
        start = math.ceil(first / unit) * unit
        number = largest_batch(compile_size, LIMIT, start, fixed=100, unit=unit)
        assert number % unit == 0
        assert number == 0 or number in compiled
        assert memory_of(number) <= LIMIT, (first, compiled)
        assert memory_of(int(1.34 * number) + grid(number, unit)) > LIMIT, (first, compiled)
        assert len(compiled) == len(set(compiled)) <= 24


def test_any_fitting_batch_needs_few_compiles():
    compile_size, compiled = _device(CURVES["linear"])
    assert 200 < largest_batch(compile_size, LIMIT, 4096, fixed=100, any_will_do=True) <= 243
    assert len(compiled) <= 3


def test_no_batch_fits_if_one_image_is_too_large():
    compile_size, compiled = _device(lambda n: 2000 + n)
    assert largest_batch(compile_size, LIMIT, 64) == 0
    assert 1 in compiled


def test_no_batch_fits_if_the_compiler_fails():
    assert largest_batch(lambda number: Program(False, "UNIMPLEMENTED"), LIMIT, 64) == 0


def test_search_ends_at_the_largest_number_of_images():
    compile_size, _ = _device(lambda n: 1)
    assert largest_batch(compile_size, LIMIT, 8) == MOST_IMAGES


def test_grid_spacing():
    assert [grid(n) for n in (0, 7, 8, 511, 512, 1024, 4096)] == [1, 1, 8, 8, 8, 16, 64]
    assert grid(3, unit=4) == 4
    assert grid(64, unit=12) == 12
    assert grid(4096, unit=25) == 50
