"""The products of a convolution along an axis, without those with zeros."""

import math


def window_products(side, taps, outputs, stride=1, low=0, side_dilation=1, tap_dilation=1):
    """The pairs of an output and a tap, along one axis of a convolution, that meet a number and not a zero.

    Args:
        side: how many numbers there are.
        taps: how many the kernel has.
        outputs: how many the result has.
        stride: from one output to the next, in numbers and the zeros between them.
        low: how many zeros come before the first number; negative where the kernel begins after it.
        side_dilation: from one number to the next; more than 1 where zeros are between them.
        tap_dilation: from one tap to the next.
    """
    last, common = (side - 1) * side_dilation, math.gcd(stride, side_dilation)
    period, count = side_dilation // common, 0  # of the outputs that meet a number and not a zero between two
    for tap in range(taps):
        first = tap * tap_dilation - low  # where the first output meets it
        if first % common:
            continue
        begin, end = max(0, -(first // stride)), min(outputs - 1, (last - first) // stride)
        phase = -first // common * pow(stride // common, -1, period) % period
        count += max(0, (end - phase) // period - (begin - 1 - phase) // period)
    return count
