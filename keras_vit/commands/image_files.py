"""Image files that somebody chose, as a model takes them."""

import re

import numpy as np
import tensorflow as tf

from keras_vit.export.decoding import Decoder
from keras_vit.inspection.attention_maps import to_rgb

MAX_MEGAPIXELS = 50.0


class ImageFileReader:
    """Reads image files as a model of images `(height, width, channels)` takes them."""

    def __init__(self, image_shape, preprocessing):
        self._preprocessing = preprocessing
        decoder = Decoder(tuple(image_shape), preprocessing, MAX_MEGAPIXELS)
        # As one graph: called eagerly, some functions in it would be traced again for every file.
        self._decode = tf.function(decoder.image, input_signature=[tf.TensorSpec((), tf.string)], autograph=False)

    def read(self, name, content):
        """A file's bytes as float32 `(H, W, C)` and as a picture, uint8 `(H, W, 3)`; a `ValueError` says why not."""
        try:
            image = self._decode(content).numpy()
        except tf.errors.OpError as error:
            refused = re.search(r"assertion failed: \[\W*([^;\]]*)", error.message)
            raise ValueError(f"{name} cannot be read: it is {refused[1] if refused else 'damaged'}.") from error
        preprocessing = self._preprocessing
        white = 2**preprocessing.bit_depth - 1
        unit = (image * np.float32(preprocessing.std) + np.float32(preprocessing.mean)) / white
        return image, np.uint8(np.rint(255 * to_rgb(2 * unit[None] - 1)[0]))
