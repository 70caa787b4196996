"""Adapting the first convolution of a checkpoint to images with another number of channels."""

import numpy as np

RULES = ("sum", "tile")


def adapt_input_channels(kernel, channels, rule):
    """A convolution's kernel for another number of input channels.

    With S channels in the kernel and C wanted:

    - "sum": every channel gets the sum over the kernel's S channels, divided by C. An image of C equal channels gets
      the outputs that the same image of S equal channels got: RGB weights see a gray image as they did in RGB.
    - "tile": channel c gets the kernel's channel `c % S`, times S / C. Where S divides C, an image that repeats S
      channels gets the outputs that those S channels got. Elsewhere the factor only keeps the outputs in scale.

    Reference: timm's `adapt_input_conv`, which sums RGB for one channel and tiles it for every other number.
    """
    present = kernel.shape[2]
    if rule == "sum":
        total = kernel.sum(axis=2, keepdims=True) / np.float32(channels)
        return np.repeat(total, channels, axis=2)
    return kernel[:, :, np.arange(channels) % present] * np.float32(present / channels)
