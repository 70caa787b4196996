"""The largest batch of a device that fits, found by compiling a few."""

import math

# No device is asked for more images than this, however small the model.
MOST_IMAGES = 2**14


def fitting_batch(compile_size, limit, first, unit=1, largest=False):
    """A number of images of a device that fits.

    Args:
        compile_size: from a number of images to `(fits, memory_bytes)`; the bytes are 0 where they are not known.
        limit: bytes of a device.
        first: the number to begin with, a multiple of `unit`.
        unit: the result is a multiple of it.
        largest: whether to look for the largest such number, of those that `grid` allows; else the first one seen to
            fit will do.

    Returns:
        The number; 0 if not even `unit` fits.
    """
    low, high, number, memory = 0, None, first, {}
    for attempt in range(64):
        fits, memory_bytes = compile_size(number)
        if memory_bytes:
            memory[number] = memory_bytes
        if fits:
            low = number
            if not largest or low >= MOST_IMAGES:
                return low
        else:
            high = number
        step = grid(low, unit)
        if high is not None and high - low <= step:
            return low
        guess = _guess(memory, limit, number, low, high)
        if high is not None and attempt >= 3 and attempt % 2:
            guess = (low + high) / 2  # memory need not grow evenly, and halving always ends
        upper = MOST_IMAGES if high is None else high - 1
        number = max(low + step, math.floor(min(guess, upper) / step) * step)
        if high is not None and number >= high:
            number = max(low + 1, (low + high) // 2) // unit * unit
            if not low < number < high:
                return low
    return low


def grid(number, unit=1):
    """The distance between the numbers that are tried near a number: 1 below 8, then 8, from 1,024 on between a 64th
    and a 128th of it; the multiple of `unit` that is not above it, or `unit`."""
    step = 1 if number < 8 else max(8, 2 ** int(math.log2(number / 64)))
    return max(step // unit, 1) * unit


def _guess(memory, limit, number, low, high):
    """The number whose memory would be the limit, on a line through two that were compiled."""
    points = sorted(memory.items(), key=lambda item: abs(item[1] - limit))[:2]
    if len(points) == 2 and points[0][1] != points[1][1]:
        (a, bytes_a), (b, bytes_b) = points
        slope = (bytes_b - bytes_a) / (b - a)
        if slope > 0:
            return a + (limit - bytes_a) / slope
    if memory.get(number):
        return 0.95 * number * limit / memory[number]
    return 2 * number if high is None else (low + high) / 2
