"""From image files to a model's input inside the served graph: bounded decoding, then the evaluation preprocessing."""

import dataclasses

import tensorflow as tf

from keras_vit.data import images, preprocessing

# Resizing a longer strip until its short side covers a square would fill the memory.
_MAX_ASPECT_RATIO = 100


@dataclasses.dataclass(frozen=True)
class Decoder:
    """From encoded images to what a model expects.

    Attributes:
        image_shape: `(height, width, 3)` of the model's images.
        preprocessing: how they must be prepared, as `keras_vit.preprocessing_of` gives it.
        rounding: the dtype that a resize gives, "float" or "uint8"; see `data.Options`.
        exif: whether photographs are turned as their EXIF orientation says.
        max_megapixels: larger images are refused by the size in their header, in millions of pixels.
    """

    image_shape: tuple
    preprocessing: dict
    rounding: str = "float"
    exif: bool = False
    max_megapixels: float = 50.0

    def __post_init__(self):
        if self.image_shape[-1] != 3 or len(self.preprocessing["mean"]) != 3:
            raise ValueError(
                "Image files are decoded to three channels; of other models only the signature 'tensor' can be "
                f"exported. Received: image_shape={self.image_shape}, preprocessing={self.preprocessing}"
            )
        if self.rounding not in ("float", "uint8"):
            raise ValueError(f"`rounding` must be 'float' or 'uint8'. Received: rounding={self.rounding!r}")
        if not self.max_megapixels > 0:
            raise ValueError(f"`max_megapixels` must be above 0. Received: max_megapixels={self.max_megapixels!r}")

    def __call__(self, encoded):
        """Image files, string `(B,)`, to float32 `(B, H, W, 3)`."""
        return tf.map_fn(self.image, encoded, fn_output_signature=tf.TensorSpec(self.image_shape, tf.float32))

    def image(self, encoded):
        """One image file, a scalar string, to float32 `(H, W, 3)`."""
        image = images.decode(encoded, self.max_megapixels, exif=self.exif)
        size = self.image_shape[:2]
        resized = tuple(round(side / self.preprocessing["crop_fraction"]) for side in size)
        if self.preprocessing["resize"] == "stretch":
            image = preprocessing.resize(image, resized, self.rounding)
        else:
            with tf.control_dependencies([_check_aspect(image)]):
                image = preprocessing.cover(image, resized, self.rounding)
        image = preprocessing.central_crop(image, size)
        image = (tf.cast(image, tf.float32) - self.preprocessing["mean"]) / self.preprocessing["std"]
        return tf.ensure_shape(image, self.image_shape)


def _check_aspect(image):
    size = tf.shape(image)[:2]
    right = tf.reduce_max(size) <= _MAX_ASPECT_RATIO * tf.reduce_min(size)
    message = f"an image more than {_MAX_ASPECT_RATIO} times as long as it is wide; its height and width:"
    return tf.raw_ops.Assert(condition=right, data=[message, size])
