"""Pictures show images as they were before normalization."""

import numpy as np

from keras_vit import plots
from keras_vit.preprocessing import Preprocessing


def test_pictures_have_the_colors_of_the_files():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3)).astype("float32")
    mean, std = np.float32([123.675, 116.28, 103.53]), np.float32([58.395, 57.12, 57.375])
    preprocessing = Preprocessing(mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    pictures = plots.to_pictures((pixels - mean) / std, preprocessing)
    np.testing.assert_allclose(pictures, pixels / 255, atol=1e-6)
    gray = plots.to_pictures(pixels[..., :1] / 127.5 - 1)
    np.testing.assert_allclose(gray, np.repeat(pixels[..., :1], 3, axis=-1) / 255, atol=1e-6)
