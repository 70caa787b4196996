"""Finds the largest batch per device that fits, by compiling for a few batch sizes."""

import math

MOST_IMAGES = 2**14  # the largest number of images per device to test
_CLOSE = 1.1  # the search stops if it predicts that at most 10 % more images fit


def largest_batch(compile_size, limit, first, fixed=0, unit=1, any_will_do=False):
    """Returns the largest tested number of images per device that fits, or 0 if none fits or the
    compiler fails.

    `compile_size(images)` returns a `Program`. `limit` is the size of HBM in bytes, and `fixed` is
    the size of the state in bytes. The search tests `first` and then other multiples of `unit`.
    With `any_will_do`, the search stops at the first number that fits.
    """
    low = 0
    high = math.inf
    number = first
    memory = {0: fixed}
    while True:
        program = compile_size(number)
        if program.memory_bytes:
            memory[number] = program.memory_bytes
        if program.compiles and program.memory_bytes <= limit:
            low = number
        elif program.compiles or program.out_of_memory:
            high = number
        else:
            return 0
        # Extrapolate memory use to the limit, and stop if the result is close or no number is left
        # to test.
        guess = _guess(memory, limit, number, low, high)
        if low and (any_will_do or low >= MOST_IMAGES or min(guess, high - 1) <= _CLOSE * low):
            return low
        step = grid(low, unit)
        if high - low <= step:
            return low
        # Test the extrapolated number, rounded to the grid, or else the midpoint.
        number = max(low + step, int(min(guess, MOST_IMAGES) // step) * step)
        if number >= high or number in memory:
            number = int((low + high) / 2 // unit) * unit
            if not low < number < high:
                return low


def grid(number, unit=1):
    """Returns the spacing of the tested numbers near `number`. The spacing is a multiple of
    `unit`."""
    step = 1 if number < 8 else max(8, 2 ** int(math.log2(number / 64)))
    return max(step // unit, 1) * unit


def _guess(memory, limit, number, low, high):
    """Estimates the number of images that fill `limit` from the two entries of `memory` nearest to
    `limit`."""
    points = sorted(memory.items(), key=lambda item: abs(item[1] - limit))[:2]
    if len(points) == 2:
        (a, bytes_a), (b, bytes_b) = points
        slope = (bytes_b - bytes_a) / (b - a)
        if slope > 0:
            return a + (limit - bytes_a) / slope
    return 2 * number if high == math.inf else (low + high) / 2
