"""From the bytes of an image file to pixels, the size read from the header before anything is decoded.

JPEG, PNG, GIF, BMP and, where TensorFlow has `tf.io.decode_webp`, WebP that is not animated. Every function runs inside
`tf.data` and raises a `tf.errors.InvalidArgumentError` for what is not an image.

Of three channels: gray images get three equal ones, an alpha channel is dropped, CMYK is converted, a GIF is its first
picture. Of one channel: colors become gray. Of any other number, the file must have exactly as many: PNG, BMP and WebP
2 or 4, a GIF any number in pages, either one gray page a channel or one page of RGB for three.

The EXIF orientation of photographs is ignored by default, as by the JAX reference `vit_jax` and by `tf.io` itself.
"""

import tensorflow as tf

from keras_vit.data import gif

_JPEG_END = b"\xff\xd9"
# By EXIF orientation: rotations by 90 degrees against the clock, and whether to mirror left and right first.
_ORIENTATIONS = [(0, False), (0, False), (0, True), (2, False), (2, True), (1, True), (3, False), (3, True), (1, False)]


def decode(encoded, max_megapixels=100.0, window=None, exif=False, channels=3, bit_depth=8):
    """The pixels of an image, or of a window of it.

    Args:
        encoded: scalar string, the bytes of a file.
        max_megapixels: larger images are refused, in millions of pixels.
        window: a function from the size, int32 `(height, width)`, to a window of it, int32 `(y, x, height, width)`.
            Of a JPEG of one or three channels nothing but the window is decoded.
        exif: whether to turn the image as its EXIF orientation says. The window is then one of the unturned image.
        channels: C, 1 or more.
        bit_depth: 8 or 16. A PNG of 16 bits has all of them only with 16; everything else is then multiplied by 257.

    Returns:
        uint8 `(H, W, C)`, or with a bit depth of 16 float32 in [0, 65535].
    """

    def widen(image):
        return 257.0 * tf.cast(image, tf.float32) if bit_depth == 16 else image

    def jpeg():
        size = tf.image.extract_jpeg_shape(encoded)[:2]
        with tf.control_dependencies([_check_size(size, max_megapixels)]):
            if window is None:
                return widen(tf.io.decode_jpeg(encoded, channels=channels))
            return widen(tf.io.decode_and_crop_jpeg(encoded, window(size), channels=channels))

    # Not inlined: TensorFlow touches every operation of a branch that is not taken, and this one has many.
    @tf.function(experimental_attributes={"_noinline": True})
    def other():
        size = header_size(encoded)
        with tf.control_dependencies([_check_size(size, max_megapixels)]):
            image = _decode_any(encoded, channels, bit_depth, max_megapixels, widen)
        if window is None:
            return image
        y, x, height, width = tf.unstack(window(size))
        return image[y : y + height, x : x + width]

    if channels in (1, 3):
        # A JPEG without its end may be truncated, which only decoding all of it shows.
        last = -tf.minimum(tf.strings.length(encoded), 2)  # of a file shorter than an end, all of it
        whole_jpeg = tf.io.is_jpeg(encoded) & (tf.strings.substr(encoded, last, 2) == _JPEG_END)
        image = tf.cond(whole_jpeg, jpeg, other)
    else:
        image = other()
    if exif:
        image = _turn(image, orientation(encoded))
    return tf.ensure_shape(image, (None, None, channels))


def header_size(encoded):
    """The size of an image by its header alone, int32 `(height, width)`; zeros for what is not an image."""
    head = tf.cast(tf.io.decode_raw(encoded, tf.uint8, fixed_length=32), tf.int32)

    def number(*offsets):
        """An integer of bytes, the lowest first."""
        return tf.add_n([head[offset] * 256**i for i, offset in enumerate(offsets)])

    def no_image():
        return tf.zeros([2], tf.int32)

    def png():
        # The decoder takes a header that comes later; the format has it first.
        is_first = tf.strings.substr(encoded, 4, 12) == b"\r\n\x1a\n\0\0\0\rIHDR"
        return tf.where(is_first, tf.stack([number(23, 22, 21, 20), number(19, 18, 17, 16)]), 0)

    def webp():
        kind = tf.strings.substr(encoded, 12, 4)
        lossless = number(21, 22, 23, 24)
        lossy = number(28, 29) % 2**14, number(26, 27) % 2**14
        # All pictures of an animation would be decoded, and their number is not in the header.
        still = 1 - number(20) // 2 % 2
        return tf.case(
            [
                (kind == b"VP8X", lambda: still * tf.stack([number(27, 28, 29) + 1, number(24, 25, 26) + 1])),
                (kind == b"VP8L", lambda: tf.stack([lossless // 2**14 % 2**14 + 1, lossless % 2**14 + 1])),
                (kind == b"VP8 ", lambda: tf.stack(lossy)),
            ],
            default=no_image,  # the decoder would look for a picture elsewhere
        )

    start = lambda length: tf.strings.substr(encoded, 0, length)  # noqa: E731
    return tf.case(
        [
            (tf.io.is_jpeg(encoded), lambda: tf.image.extract_jpeg_shape(encoded)[:2]),
            (start(4) == b"\x89PNG", png),
            (start(4) == b"GIF8", lambda: gif.picture_size(encoded)),
            # The height of a BMP is negative where its rows run downwards.
            (start(2) == b"BM", lambda: tf.abs(tf.stack([number(22, 23, 24, 25), number(18, 19, 20, 21)]))),
            (start(4) == b"RIFF", webp),
        ],
        default=no_image,
    )


def orientation(encoded):
    """The EXIF orientation of a JPEG, int32 in 1 to 8; 1, upright, where the file does not say."""
    head = tf.io.decode_raw(tf.strings.substr(encoded, 0, tf.minimum(tf.strings.length(encoded), 4096)), tf.uint8)
    # The entry of the tag in its directory: tag 0x0112, a SHORT (3), one of it, the value.
    big, little = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00", b"\x12\x01\x03\x00\x01\x00\x00\x00"
    orientation = tf.constant(1, tf.int32)
    for pattern in (big, little):
        starts = tf.maximum(tf.size(head) - len(pattern), 0)
        same = [head[i : i + starts] == byte for i, byte in enumerate(pattern)]
        at = tf.reshape(tf.where(tf.reduce_all(tf.stack(same), 0)), [-1])[:1]
        value = tf.cast(tf.gather(head, at + len(pattern)), tf.int32)
        orientation = tf.reduce_max(tf.concat([value, [orientation]], 0))
    return tf.where(tf.io.is_jpeg(encoded) & (orientation <= 8), orientation, 1)


def _check_size(size, max_megapixels):
    area = tf.reduce_prod(tf.cast(size, tf.int64))
    right = (area > 0) & (area <= int(max_megapixels * 1e6))
    # The raw op: `tf.debugging.Assert` adds a conditional, which costs more than all the rest of the check.
    message = f"not an image of a known kind, or one of more than {max_megapixels:g} megapixels; its height and width:"
    return tf.raw_ops.Assert(condition=right, data=[message, size])


def _decode_any(encoded, channels, bit_depth, max_megapixels, widen):
    """An image of any known kind; see `decode`."""
    start = tf.strings.substr(encoded, 0, 4)

    def eight_bits():
        if channels == 3:
            return _decode_rgb(encoded)
        if channels == 1:
            direct = (start == b"\x89PNG") | tf.io.is_jpeg(encoded)
            gray = lambda: tf.image.rgb_to_grayscale(_decode_rgb(encoded))  # noqa: E731
            return tf.cond(direct, lambda: tf.io.decode_image(encoded, channels=1, expand_animations=False), gray)
        pages = lambda: _decode_pages(encoded, channels, max_megapixels)  # noqa: E731
        return _of_channels(tf.cond(start == b"GIF8", pages, lambda: _decode_as_stored(encoded)), channels)

    if bit_depth == 8:
        return eight_bits()

    def png():
        stored = tf.io.decode_png(encoded, channels if channels in (1, 3) else 0, tf.uint16)
        return _of_channels(tf.cast(stored, tf.float32), channels)

    return tf.cond(start == b"\x89PNG", png, lambda: widen(eight_bits()))


def _decode_rgb(encoded):
    """uint8 `(H, W, 3)` of any known kind."""
    start = tf.strings.substr(encoded, 0, 4)
    encoded = tf.cond(start == b"GIF8", lambda: gif.first_picture(encoded), lambda: encoded)

    def known():
        return tf.io.decode_image(encoded, channels=3, expand_animations=False)

    if not hasattr(tf.io, "decode_webp"):
        return known()
    # It refuses to drop an alpha channel, and returns frames even of a picture that is not animated.
    webp = lambda: tf.ensure_shape(tf.io.decode_webp(encoded)[0, :, :, :3], (None, None, 3))  # noqa: E731
    return tf.cond(start == b"RIFF", webp, known)


def _decode_as_stored(encoded):
    """uint8 `(H, W, C)` of what is not a GIF, with the channels that the file has."""

    def known():
        return tf.io.decode_image(encoded, expand_animations=False)

    if not hasattr(tf.io, "decode_webp"):
        return known()
    return tf.cond(tf.strings.substr(encoded, 0, 4) == b"RIFF", lambda: tf.io.decode_webp(encoded)[0], known)


def _decode_pages(encoded, channels, max_megapixels):
    """uint8 `(H, W, C)` of a GIF whose pages are its channels: one gray page for each, or one RGB page for three."""
    pictures = gif.all_pictures(encoded)
    pages = pictures[0]
    known = (pages == channels) | (3 * pages == channels)
    message = f"a GIF of {channels} channels has as many gray pages, or a third of them in RGB; it has:"
    checks = [
        tf.raw_ops.Assert(condition=known, data=[message, pages]),
        _check_size(pictures, max_megapixels),
    ]
    with tf.control_dependencies(checks):
        frames = tf.io.decode_gif(encoded)  # (P, H, W, 3)
    height, width = tf.unstack(tf.shape(frames)[1:3])

    def gray():
        # Three equal channels, which no conversion may round.
        return tf.transpose(frames[..., 0], (1, 2, 0))

    def rgb():
        return tf.reshape(tf.transpose(frames, (1, 2, 0, 3)), (height, width, channels))

    return tf.cond(pages == channels, gray, rgb)


def _of_channels(image, channels):
    """The image, or an error where it has another number of channels."""
    stored = tf.shape(image)[2]
    check = tf.raw_ops.Assert(
        condition=stored == channels, data=[f"an image without {channels} channels; it has:", stored]
    )
    with tf.control_dependencies([check]):
        return tf.ensure_shape(tf.identity(image), (None, None, channels))


def _turn(image, orientation):
    turns = tf.constant([turn for turn, _ in _ORIENTATIONS])[orientation]
    mirrored = tf.constant([mirror for _, mirror in _ORIENTATIONS])[orientation]
    image = tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)
    return tf.cond(turns > 0, lambda: tf.image.rot90(image, turns), lambda: image)
