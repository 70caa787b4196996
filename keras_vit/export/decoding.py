"""Decodes image files in the served graph, with limits on their size, and preprocesses them as in
evaluation."""

import dataclasses

import tensorflow as tf

from keras_vit.data import images, inputs
from keras_vit.data.images import checked
from keras_vit.preprocessing import Preprocessing, preprocessing_of

# Maximum ratio of an image's sides for models that resize the shorter side. Resizing a narrower
# image could exhaust the memory.
_MAX_ASPECT_RATIO = 100


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Decodes and preprocesses image files for a model."""

    image_shape: tuple  # of one image in a batch, such as (height, width, channels)
    preprocessing: Preprocessing
    max_megapixels: float = 50.0

    def __post_init__(self):
        channels = self.image_shape[-1]
        if channels > 4 or self.preprocessing.channels != channels:
            raise ValueError(
                "Image files require a model with 1 to 4 channels and a mean and std for each "
                "channel; other models can be exported only with the signature 'tensor'. "
                f"Received: image_shape={self.image_shape}, preprocessing={self.preprocessing}"
            )
        if not self.max_megapixels > 0:
            raise ValueError(
                "`max_megapixels` must be positive. Received: "
                f"max_megapixels={self.max_megapixels!r}"
            )

    def __call__(self, encoded):
        """Converts image files, string `(B,)`, to a batch for the model, which is float32
        `(B, *image_shape)`."""
        return tf.map_fn(
            self.image, encoded, fn_output_signature=tf.TensorSpec(self.image_shape, tf.float32)
        )

    def image(self, encoded):
        """Converts an image file, a scalar string, to a float32 tensor of shape `image_shape`."""
        p = self.preprocessing
        image = self.decode(encoded)
        if p.resize == "shorter_side":
            size = tf.shape(image)[:2]
            narrow = tf.reduce_max(size) <= _MAX_ASPECT_RATIO * tf.reduce_min(size)
            message = (
                f"an image more than {_MAX_ASPECT_RATIO} times as long as wide; height and width:"
            )
            image = checked(image, narrow, message, size)
        image = inputs.kind_for(p).evaluation_image(image, self.image_shape[:2], p)
        return tf.ensure_shape(image, self.image_shape)

    def decode(self, encoded):
        """Returns the pixels of an image file, uint8 or float32 `(H, W, C)`, before they are
        resized."""
        p = self.preprocessing
        return images.decode(
            encoded,
            self.max_megapixels,
            exif=p.exif,
            channels=p.channels,
            bit_depth=p.bit_depth,
            library=p.library,
        )


def decoder_of(model, rounding, exif, max_megapixels):
    """Returns the `Decoder` of a model; None keeps the model's own `rounding` or `exif`."""
    given = {"rounding": rounding, "exif": exif}
    changes = {name: value for name, value in given.items() if value is not None}
    preprocessing = dataclasses.replace(preprocessing_of(model), **changes)
    return Decoder(tuple(model.input_shape[1:]), preprocessing, max_megapixels)
