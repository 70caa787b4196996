"""Image files that somebody chose: what a model gets of them, or a sentence that says what is wrong with a file."""

import re

import numpy as np
import tensorflow as tf

from keras_vit.data import images
from keras_vit.export.decoding import Decoder
from keras_vit.inspection.attention_maps import to_rgb

MAX_MEGAPIXELS = 50.0


class ImageFileReader:
    """Reads image files as a model of images `(height, width, channels)` takes them."""

    def __init__(self, image_shape, preprocessing):
        self.preprocessing = preprocessing
        decoder = Decoder(tuple(image_shape), preprocessing, MAX_MEGAPIXELS)
        # As one graph: called eagerly, some functions in it would be traced again for every file.
        self._decode = tf.function(decoder.image, input_signature=[tf.TensorSpec((), tf.string)], autograph=False)

    def read(self, name, content):
        """A file's bytes as float32 `(H, W, C)` and uint8 `(H, W, 3)`; raises a `ValueError` with a sentence."""
        try:
            image = self._decode(content).numpy()
        except tf.errors.OpError as error:
            raise ValueError(f"{name} {why_refused(content, error.message)}.") from error
        return image, self._to_picture(image)

    def _to_picture(self, image):
        preprocessing = self.preprocessing
        white = 255 if preprocessing.bit_depth == 8 else 65535
        unit = (image * np.float32(preprocessing.std) + np.float32(preprocessing.mean)) / white
        return np.uint8(np.rint(255 * to_rgb(2 * unit[None] - 1)[0]))

    def notes(self, name, content):
        """Sentences about what is lost of a file that can be used."""
        channels, bit_depth = self.preprocessing.channels, self.preprocessing.bit_depth
        if content[:4] == b"\x89PNG":
            if content[24] == 16 and bit_depth == 8:
                yield f"{name} has 16 bits a channel; the upper 8 are used."
            if content[25] in (4, 6) and channels in (1, 3):
                yield f"{name} has transparency, which is ignored."
        elif content[:4] == b"GIF8" and channels in (1, 3) and len(tf.io.decode_gif(content)) > 1:
            yield f"{name} is an animation; its first picture is used."
        elif content[:2] == b"\xff\xd8" and int(tf.image.extract_jpeg_shape(content)[2]) == 4:
            yield f"{name} has the colors of print (CMYK), which are converted."


def why_refused(content, message):
    """Why a file cannot be used, as the second half of a sentence."""
    height, width = images.header_size(tf.constant(content)).numpy().tolist() if content else (0, 0)
    if not content:
        return "is empty"
    if height < 1 or width < 1:
        return "is not an image that can be read: JPEG, PNG, GIF, BMP or WebP"
    if height * width > MAX_MEGAPIXELS * 1e6:
        return f"has {width:,} x {height:,} pixels; at most {MAX_MEGAPIXELS:g} million can be read"
    refused = re.search(r"assertion failed: \[\W*(an? [^;\]]*)", message)
    return f"is {refused[1]}, which is not read" if refused else "is damaged or cut short"
