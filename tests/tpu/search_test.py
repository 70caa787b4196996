"""The search for a batch that fits, on memory by formula instead of a compiler."""

import itertools

import pytest

from keras_vit.tpu.search import MOST_IMAGES, fitting_batch, grid

LIMIT = 1000


def _device(memory_of, reports=True):
    """`compile_size` of a device, and the list of the sizes that were compiled."""
    compiled = []

    def compile_size(number):
        compiled.append(number)
        return memory_of(number) <= LIMIT, int(memory_of(number)) if reports else 0

    return compile_size, compiled


CURVES = {
    "even": lambda n: 100 + 3.7 * n,
    "hardly any": lambda n: 1 + 0.5 * n,
    "saves memory near the limit": lambda n: 100 + 3.7 * n - max(0, 3 * (n - 200)),
    "jumps": lambda n: 100 + 3.7 * (n // 64 * 64),
    "few": lambda n: 100 + 150 * n,
}


@pytest.mark.parametrize("curve", CURVES)
def test_the_largest_batch_fits_and_the_next_does_not(curve):
    for first, unit, reports in itertools.product([1, 8, 48, 250, 4096], [1, 4, 9, 25], [True, False]):
        compile_size, compiled = _device(CURVES[curve], reports)
        number = fitting_batch(compile_size, LIMIT, -(-first // unit) * unit, unit, largest=True)
        assert number % unit == 0 and (number == 0 or number in compiled)
        assert CURVES[curve](number) <= LIMIT < CURVES[curve](number + grid(number, unit))
        assert len(compiled) == len(set(compiled)) <= 24


def test_one_that_fits_is_found_with_few_compiles():
    compile_size, compiled = _device(CURVES["even"])
    assert 200 < fitting_batch(compile_size, LIMIT, 4096) <= 243
    assert len(compiled) <= 3


def test_nothing_fits_where_one_image_does_not():
    compile_size, compiled = _device(lambda n: 2000 + n)
    assert fitting_batch(compile_size, LIMIT, 64) == 0
    assert 1 in compiled


def test_a_model_that_needs_nothing_ends_the_search():
    compile_size, _ = _device(lambda n: 1)
    assert fitting_batch(compile_size, LIMIT, 8, largest=True) == MOST_IMAGES


def test_the_grid_is_fine_where_batches_are_small():
    assert [grid(n) for n in (0, 7, 8, 511, 512, 1024, 4096)] == [1, 1, 8, 8, 8, 16, 64]
    assert grid(3, unit=4) == 4 and grid(64, unit=12) == 12 and grid(4096, unit=25) == 50
