"""Makes the pictures of the tests of NaFlex."""

import keras
import numpy as np


def picture(number, height, width):
    """Returns an RGB image with gradients and a checkerboard.

    The golden file `naflex_images.npz` depends on its pixels.
    """
    y, x, channel = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    values = 37 * number + (3 + channel) * y + (5 - channel) * x + (x * y) // (3 + number)
    return np.uint8(values % 256 // (1 + (x + y) % 2))


def write_photos(folder):
    """Writes twelve dark images of class "a" and twelve bright ones of class "b", all of different
    aspect ratios."""
    for name, brightness in (("a", 0), ("b", 200)):
        (folder / name).mkdir(parents=True)
        for i in range(12):
            pixels = np.full((20 + 5 * i, 70 - 4 * i, 3), brightness + i)
            keras.utils.save_img(folder / name / f"{i}.png", pixels, scale=False)
