"""Makes the pictures of the tests of NaFlex."""

import numpy as np


def picture(number, height, width):
    """Returns an RGB image with gradients and a checkerboard.

    The golden file `naflex_images.npz` depends on its pixels.
    """
    y, x, channel = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    values = 37 * number + (3 + channel) * y + (5 - channel) * x + (x * y) // (3 + number)
    return np.uint8(values % 256 // (1 + (x + y) % 2))
