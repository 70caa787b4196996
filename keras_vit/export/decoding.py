"""From image files to a model's input inside the served graph: bounded decoding, then the evaluation preprocessing."""

import dataclasses

import tensorflow as tf

from keras_vit.data import images, transforms
from keras_vit.preprocessing import Preprocessing

# Resizing a longer strip until its short side covers a square would fill the memory.
_MAX_ASPECT_RATIO = 100
# All images of a request together may have this many times the pixels of the largest one allowed.
_REQUEST_IMAGES = 10
# What a file may cost beside its pixels. Each scan of a JPEG goes over all of it, and cameras write about ten; a
# kilobyte of a PNG's text or color profile may be a megabyte compressed.
_MOST_JPEG_SCANS, _MOST_PNG_TEXT, _MOST_EXTRA_BYTES = 100, 1 << 16, 1 << 23


@dataclasses.dataclass(frozen=True)
class Decoder:
    """From encoded images to what a model expects.

    Attributes:
        image_shape: `(height, width, channels)` of the model's images, of at most 4 channels.
        preprocessing: how they must be prepared, as `keras_vit.preprocessing_of` returns it.
        max_megapixels: larger images are refused by the size in their header, in millions of pixels; and so are
            requests of more than ten times as many.
    """

    image_shape: tuple
    preprocessing: Preprocessing
    max_megapixels: float = 50.0

    def __post_init__(self):
        channels = self.image_shape[-1]
        if channels > 4 or self.preprocessing.channels != channels:
            raise ValueError(
                "Image files are decoded to 1 to 4 channels, each with its mean and std; of other models only the "
                f"signature 'tensor' can be exported. Received: image_shape={self.image_shape}, "
                f"preprocessing={self.preprocessing}"
            )
        if not self.max_megapixels > 0:
            raise ValueError(f"`max_megapixels` must be above 0. Received: max_megapixels={self.max_megapixels!r}")

    def __call__(self, encoded):
        """Image files, string `(B,)`, to float32 `(B, H, W, C)`."""
        sizes = tf.map_fn(images.header_size, encoded, fn_output_signature=tf.TensorSpec((2,), tf.int32))
        area = tf.reduce_sum(tf.reduce_prod(tf.cast(sizes, tf.float32), 1))
        most = _REQUEST_IMAGES * self.max_megapixels
        message = f"the images of a request have more than {most:g} megapixels together; their pixels:"
        with tf.control_dependencies([tf.raw_ops.Assert(condition=area <= most * 1e6, data=[message, area])]):
            encoded = tf.identity(encoded)
        return tf.map_fn(self.image, encoded, fn_output_signature=tf.TensorSpec(self.image_shape, tf.float32))

    def image(self, encoded):
        """One image file, a scalar string, to float32 `(H, W, C)`."""
        preprocessing = self.preprocessing
        with tf.control_dependencies(_check_work(encoded)):
            encoded = tf.identity(encoded)
        image = images.decode(
            encoded,
            self.max_megapixels,
            exif=preprocessing.exif,
            channels=preprocessing.channels,
            bit_depth=preprocessing.bit_depth,
        )
        with tf.control_dependencies([_check_aspect(image)] if preprocessing.resize == "shorter_side" else []):
            image = transforms.evaluation_image(image, self.image_shape[:2], preprocessing)
        return tf.ensure_shape(image, self.image_shape)


def _check_work(encoded):
    """Assertions that decoding a file takes no more than a constant times what its pixels and its bytes take."""
    file = tf.io.decode_raw(encoded, tf.uint8)
    area = tf.reduce_prod(tf.cast(images.header_size(encoded), tf.int64))
    length = tf.cast(tf.size(file), tf.int64)

    def jpeg_scans():
        # Compressed pixels have a zero after each 0xff, so these two bytes are a marker.
        return tf.math.count_nonzero((file[:-1] == 0xFF) & (file[1:] == 0xDA))

    def png_text():
        """The bytes of compressed text and color profiles, from one chunk to the next."""
        most_chunks = length // 512 + 1000

        def follow(at, chunks, text):
            head = tf.io.decode_raw(tf.strings.substr(encoded, at, 4), tf.uint8, fixed_length=4)
            size = tf.reduce_sum(tf.cast(head, tf.int64) * [2**24, 2**16, 2**8, 1])
            is_text = tf.reduce_any(tf.strings.substr(encoded, at + 4, 4) == [b"zTXt", b"iTXt", b"iCCP"])
            return at + 12 + size, chunks + 1, text + tf.where(is_text, size, 0)

        start = (tf.constant(8, tf.int64), tf.constant(0, tf.int64), tf.constant(0, tf.int64))
        goes_on = lambda at, chunks, text: (at + 8 <= length) & (chunks < most_chunks)  # noqa: E731
        _, chunks, text = tf.while_loop(goes_on, follow, start)
        return tf.where(chunks < most_chunks, text, tf.int64.max)  # too many chunks to look at

    none = lambda: tf.constant(0, tf.int64)  # noqa: E731
    scans = tf.cond(tf.io.is_jpeg(encoded), jpeg_scans, none)
    text = tf.cond(tf.strings.substr(encoded, 0, 4) == b"\x89PNG", png_text, none)
    return [
        tf.raw_ops.Assert(condition=condition, data=[message, value])
        for condition, message, value in (
            (length <= 16 * area + _MOST_EXTRA_BYTES, "a file far larger than its pixels; its bytes:", length),
            (scans <= _MOST_JPEG_SCANS, f"a JPEG of more than {_MOST_JPEG_SCANS} scans; it has:", scans),
            (text <= _MOST_PNG_TEXT + area // 64, "a PNG with too much text or color profile; its bytes:", text),
        )
    ]


def _check_aspect(image):
    size = tf.shape(image)[:2]
    right = tf.reduce_max(size) <= _MAX_ASPECT_RATIO * tf.reduce_min(size)
    message = f"an image more than {_MAX_ASPECT_RATIO} times as long as it is wide; its height and width:"
    return tf.raw_ops.Assert(condition=right, data=[message, size])
