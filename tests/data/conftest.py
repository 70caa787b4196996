"""Small image files for the tests of `data`."""

import numpy as np
import pytest
import tensorflow as tf


def jpeg(number, height=20, width=28):
    """Returns a JPEG that is unique for each number; its mean grows with the number."""
    image = np.random.default_rng(number).integers(0, 60, (height, width, 3)) + 3 * number
    return tf.io.encode_jpeg(image.astype(np.uint8), quality=95).numpy()


@pytest.fixture(scope="session")
def images_of():
    return jpeg


@pytest.fixture
def photos(tmp_path):
    """Returns a folder with three classes of 12, 7 and 4 JPEGs."""
    number = 0
    for name, count in (("ant", 12), ("bee", 7), ("cat", 4)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(count):
            (tmp_path / "photos" / name / f"{i:02}.jpg").write_bytes(jpeg(number))
            number += 1
    return tmp_path / "photos"
