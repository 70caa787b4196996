"""From the bytes of an image file to pixels, the size read from the header before anything is decoded.

JPEG, PNG, GIF (its first frame), BMP and, where TensorFlow has `tf.io.decode_webp`, WebP that does not move. Grey
images get three equal channels, an alpha channel is dropped, CMYK is converted. Every function runs inside `tf.data`
and raises a `tf.errors.InvalidArgumentError` for what is no image.

The EXIF orientation of photographs is ignored unless asked for, as by the original and by `tf.io` itself.
"""

import tensorflow as tf

from keras_vit.data import gif

_JPEG_END = b"\xff\xd9"
# By EXIF orientation: rotations by 90 degrees against the clock, and whether to mirror left and right first.
_ORIENTATIONS = [(0, False), (0, False), (0, True), (2, False), (2, True), (1, True), (3, False), (3, True), (1, False)]


def decode(encoded, max_megapixels=100.0, window=None, exif=False):
    """The pixels of an image, or of a window of it.

    Args:
        encoded: scalar string, the bytes of a file.
        max_megapixels: larger images are refused, in millions of pixels.
        window: a function from the size, int32 `(height, width)`, to a window of it, int32 `(y, x, height, width)`.
            Of a JPEG nothing but the window is decoded.
        exif: whether to turn the image as its EXIF orientation says. The window is then one of the unturned image.

    Returns:
        uint8 `(H, W, 3)`.
    """
    # A JPEG without its end may be truncated, which only decoding all of it shows.
    last = -tf.minimum(tf.strings.length(encoded), 2)  # of a file shorter than an end, all of it
    whole_jpeg = tf.io.is_jpeg(encoded) & (tf.strings.substr(encoded, last, 2) == _JPEG_END)

    def jpeg():
        size = tf.image.extract_jpeg_shape(encoded)[:2]
        with tf.control_dependencies([_check_size(size, max_megapixels)]):
            if window is None:
                return tf.io.decode_jpeg(encoded, channels=3)
            return tf.io.decode_and_crop_jpeg(encoded, window(size), channels=3)

    # Not inlined: TensorFlow touches every operation of a branch that is not taken, and this one has many.
    @tf.function(experimental_attributes={"_noinline": True})
    def other():
        size = header_size(encoded)
        with tf.control_dependencies([_check_size(size, max_megapixels)]):
            image = _decode_any(encoded)
        if window is None:
            return image
        y, x, height, width = tf.unstack(window(size))
        return image[y : y + height, x : x + width]

    image = tf.cond(whole_jpeg, jpeg, other)
    if exif:
        image = _turn(image, orientation(encoded))
    return tf.ensure_shape(image, (None, None, 3))


def header_size(encoded):
    """The size of an image by its header alone, int32 `(height, width)`; zeros for what is no image."""
    head = tf.cast(tf.io.decode_raw(encoded, tf.uint8, fixed_length=32), tf.int32)

    def number(*places):
        """An integer of bytes, the lowest first."""
        return tf.add_n([head[place] * 256**i for i, place in enumerate(places)])

    def webp():
        kind = tf.strings.substr(encoded, 12, 4)
        lossless = number(21, 22, 23, 24)
        lossy = [number(28, 29) % 2**14, number(26, 27) % 2**14]
        # All pictures of an animation would be decoded, and their number is not in the header.
        still = 1 - number(20) // 2 % 2
        return tf.case(
            [
                (kind == b"VP8X", lambda: still * tf.stack([number(27, 28, 29) + 1, number(24, 25, 26) + 1])),
                (kind == b"VP8L", lambda: tf.stack([lossless // 2**14 % 2**14 + 1, lossless % 2**14 + 1])),
            ],
            default=lambda: tf.stack(lossy),
        )

    start = lambda length: tf.strings.substr(encoded, 0, length)  # noqa: E731
    return tf.case(
        [
            (tf.io.is_jpeg(encoded), lambda: tf.image.extract_jpeg_shape(encoded)[:2]),
            (start(4) == b"\x89PNG", lambda: tf.stack([number(23, 22, 21, 20), number(19, 18, 17, 16)])),
            (start(4) == b"GIF8", lambda: gif.picture_size(encoded)),
            # The height of a BMP is negative where its rows run downwards.
            (start(2) == b"BM", lambda: tf.abs(tf.stack([number(22, 23, 24, 25), number(18, 19, 20, 21)]))),
            (start(4) == b"RIFF", webp),
        ],
        default=lambda: tf.zeros([2], tf.int32),
    )


def orientation(encoded):
    """The EXIF orientation of a JPEG, int32 in 1 to 8; 1, upright, where there is none."""
    head = tf.io.decode_raw(tf.strings.substr(encoded, 0, tf.minimum(tf.strings.length(encoded), 4096)), tf.uint8)
    # The entry of the tag in its directory: tag 0x0112, a SHORT (3), one of it, the value.
    big, little = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00", b"\x12\x01\x03\x00\x01\x00\x00\x00"
    found = tf.constant(1, tf.int32)
    for pattern in (big, little):
        places = tf.maximum(tf.size(head) - len(pattern), 0)
        same = [head[i : i + places] == byte for i, byte in enumerate(pattern)]
        at = tf.reshape(tf.where(tf.reduce_all(tf.stack(same), 0)), [-1])[:1]
        value = tf.cast(tf.gather(head, at + len(pattern)), tf.int32)
        found = tf.reduce_max(tf.concat([value, [found]], 0))
    return tf.where(tf.io.is_jpeg(encoded) & (found <= 8), found, 1)


def _check_size(size, max_megapixels):
    pixels = tf.reduce_prod(tf.cast(size, tf.int64))
    right = (pixels > 0) & (pixels <= int(max_megapixels * 1e6))
    # The raw op: `tf.debugging.Assert` adds a conditional, which costs more than all the rest of the check.
    message = f"no image of a known kind, or one of more than {max_megapixels:g} megapixels; its height and width:"
    return tf.raw_ops.Assert(condition=right, data=[message, size])


def _decode_any(encoded):
    """uint8 `(H, W, 3)` of any known kind."""

    start = tf.strings.substr(encoded, 0, 4)
    encoded = tf.cond(start == b"GIF8", lambda: gif.first_picture(encoded), lambda: encoded)

    def known():
        return tf.io.decode_image(encoded, channels=3, expand_animations=False)

    if not hasattr(tf.io, "decode_webp"):
        return known()
    return tf.cond(start == b"RIFF", lambda: _decode_webp(encoded), known)


def _decode_webp(encoded):
    # It refuses to drop an alpha channel, and gives frames even of a picture that does not move.
    image = tf.io.decode_webp(encoded)[0, :, :, :3]
    return tf.ensure_shape(image, (None, None, 3))


def _turn(image, orientation):
    turns = tf.constant([turn for turn, _ in _ORIENTATIONS])[orientation]
    mirrored = tf.constant([mirror for _, mirror in _ORIENTATIONS])[orientation]
    image = tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)
    return tf.cond(turns > 0, lambda: tf.image.rot90(image, turns), lambda: image)
