"""Decodes image files inside `tf.data`, after checking their sizes.

The formats are JPEG, PNG, GIF (the first frame), BMP and, on TensorFlow 2.21 or later, WebP without
animation.

For three channels, gray values are repeated, alpha channels are dropped, palettes are applied and
CMYK is converted. For one channel, colors are converted to gray. Any other number of channels must
match the file. Compressed BMP files are refused. EXIF orientation is ignored by default.
"""

import tensorflow as tf

_JPEG_END = b"\xff\xd9"
# For each EXIF orientation, from 1 (entry 0 is unused): the number of counterclockwise rotations by
# 90 degrees, and whether to mirror horizontally first.
_ORIENTATIONS = [
    (0, False),
    (0, False),
    (0, True),
    (2, False),
    (2, True),
    (1, True),
    (3, False),
    (3, True),
    (1, False),
]


def decode(
    encoded,
    max_megapixels=100.0,
    window=None,
    exif=False,
    channels=3,
    bit_depth=8,
    library="vit_jax",
):
    """Decodes an image file, or a window of it, to `(H, W, C)`.

    `window` is a function from the stored size, int32 `(height, width)`, to the window, int32
    `(y, x, height, width)`; both are before the EXIF rotation. `library` is that of a
    `Preprocessing`. Returns uint8, or float32 in [0, 65535] if `bit_depth` is 16.
    """
    dct = "" if library == "vit_jax" else "INTEGER_ACCURATE"  # the latter is the method of Pillow

    def widen(image):
        return 257.0 * tf.cast(image, tf.float32) if bit_depth == 16 else image

    def jpeg():
        size = tf.image.extract_jpeg_shape(encoded)[:2]
        file = _small_enough(encoded, size, max_megapixels)
        return widen(_decode_jpeg(file, channels, dct, None if window is None else window(size)))

    # Prevent inlining, because TensorFlow visits all operations of an inlined branch even if the
    # branch is not taken.
    @tf.function(experimental_attributes={"_noinline": True})
    def other():
        file = _small_enough(encoded, header_size(encoded), max_megapixels)
        image = _decode_any(file, channels, bit_depth, widen, dct)
        if window is None:
            return image
        y, x, height, width = tf.unstack(window(tf.shape(image)[:2]))
        return image[y : y + height, x : x + width]

    if channels in (1, 3):
        # A JPEG without an end marker may be truncated. Only decoding the whole file detects this.
        last = -tf.minimum(tf.strings.length(encoded), 2)  # a file may have fewer than two bytes
        whole_jpeg = tf.io.is_jpeg(encoded) & (tf.strings.substr(encoded, last, 2) == _JPEG_END)
        image = tf.cond(whole_jpeg, jpeg, other)
    else:
        image = other()
    if exif:
        image = upright(image, encoded)
    return tf.ensure_shape(image, (None, None, channels))


def upright(image, encoded):
    """Mirrors and rotates the pixels of a file as its EXIF orientation says."""
    turns, mirrored = _orientation_of(encoded)
    image = tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)
    return tf.cond(turns > 0, lambda: tf.image.rot90(image, turns), lambda: image)


def as_stored(image, encoded):
    """Undoes `upright`."""
    turns, mirrored = _orientation_of(encoded)
    image = tf.cond(turns > 0, lambda: tf.image.rot90(image, 4 - turns), lambda: image)
    return tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)


def _orientation_of(encoded):
    """Returns (number of rotations, whether mirrored) of a file, from `_ORIENTATIONS`."""
    return [tf.constant(values)[orientation(encoded)] for values in zip(*_ORIENTATIONS)]


def header_size(encoded):
    """Returns the size in the header of an image file, int32 `(height, width)`; both numbers are 0
    for an unsupported file."""
    head = tf.cast(tf.io.decode_raw(encoded, tf.uint8, fixed_length=32), tf.int32)
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"

    def starts_with(start):
        return tf.strings.substr(encoded, 0, len(start)) == start

    def number(*offsets):
        """Returns the little-endian integer in the bytes at these offsets."""
        return tf.add_n([head[offset] * 256**i for i, offset in enumerate(offsets)])

    def webp():
        kind = tf.strings.substr(encoded, 12, 4)
        packed = number(21, 22, 23, 24)  # the size of a lossless image
        # An animation gets size 0, because it may have any number of frames.
        still = 1 - number(20) // 2 % 2
        extended = still * tf.stack([number(27, 28, 29) + 1, number(24, 25, 26) + 1])
        lossless = tf.stack([packed // 2**14 % 2**14 + 1, packed % 2**14 + 1])
        lossy = tf.stack([number(28, 29) % 2**14, number(26, 27) % 2**14])
        sizes = tf.stack([extended, lossless, lossy])
        return tf.reduce_sum(tf.where((kind == [b"VP8X", b"VP8L", b"VP8 "])[:, None], sizes, 0), 0)

    return tf.case(
        [
            (tf.io.is_jpeg(encoded), lambda: tf.image.extract_jpeg_shape(encoded)[:2]),
            # The PNG format requires the header (IHDR) to come first, although the decoder accepts
            # it elsewhere.
            (starts_with(png), lambda: tf.stack([number(23, 22, 21, 20), number(19, 18, 17, 16)])),
            (starts_with(b"GIF8"), lambda: tf.stack([number(8, 9), number(6, 7)])),
            # The height of a BMP is negative if its rows are stored top-down.
            (
                starts_with(b"BM"),
                lambda: tf.abs(tf.stack([number(22, 23, 24, 25), number(18, 19, 20, 21)])),
            ),
            (starts_with(b"RIFF"), webp),
        ],
        default=lambda: tf.zeros([2], tf.int32),
    )


def orientation(encoded):
    """Returns the EXIF orientation of a JPEG, int32 from 1 to 8.

    Returns 1 (upright) if the first 4096 bytes of the file do not specify the orientation.
    """
    head = tf.io.decode_raw(
        tf.strings.substr(encoded, 0, tf.minimum(tf.strings.length(encoded), 4096)), tf.uint8
    )
    # Find the directory entry of the tag, big- or little-endian: tag 0x0112, type SHORT (3), count
    # 1, and the value.
    big = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00"
    little = b"\x12\x01\x03\x00\x01\x00\x00\x00"
    values = [tf.constant([1], tf.int32)]
    for pattern in (big, little):
        starts = tf.maximum(tf.size(head) - len(pattern), 0)
        same = [head[i : i + starts] == byte for i, byte in enumerate(pattern)]
        at = tf.reshape(tf.where(tf.reduce_all(tf.stack(same), 0)), [-1])[:1]
        values.append(tf.cast(tf.gather(head, at + len(pattern)), tf.int32))
    largest = tf.reduce_max(tf.concat(values, 0))
    return tf.where(tf.io.is_jpeg(encoded) & (largest <= 8), largest, 1)


def checked(value, condition, message, received):
    """Returns `value`; raises a TensorFlow error with `message` and `received` if `condition` is
    False."""
    # Use the raw op, because `tf.debugging.Assert` adds a conditional, which costs more than
    # reading a header.
    with tf.control_dependencies(
        [tf.raw_ops.Assert(condition=condition, data=[message, received])]
    ):
        return tf.identity(value)


def _small_enough(encoded, size, max_megapixels):
    area = tf.reduce_prod(tf.cast(size, tf.int64))
    too_large = f"larger than {max_megapixels:g} megapixels (max_megapixels); height and width:"
    message = tf.where(area > 0, too_large, "not an image in a known format; height and width:")
    return checked(encoded, (area > 0) & (area <= int(max_megapixels * 1e6)), message, size)


def _decode_jpeg(encoded, channels, dct, window=None):
    """Decodes a JPEG file, or the window (y, x, height, width) of it, to uint8 `(H, W, C)`."""

    def read(channels):
        if window is None:
            return tf.io.decode_jpeg(encoded, channels, dct_method=dct)
        return tf.io.decode_and_crop_jpeg(encoded, window, channels, dct_method=dct)

    if channels != 1:
        return read(channels)
    is_cmyk = tf.image.extract_jpeg_shape(encoded)[2] == 4  # libjpeg does not convert CMYK to gray
    return tf.cond(is_cmyk, lambda: tf.image.rgb_to_grayscale(read(3)), lambda: read(1))


def _decode_bmp(encoded, channels):
    """Decodes a BMP file; looks up the colors of a palette, which TensorFlow does not."""

    def number(at, dtype):
        return tf.io.decode_raw(tf.strings.substr(encoded, at, dtype.size), dtype)[0]

    def from_palette():
        compression = number(30, tf.int32)
        file = checked(
            encoded, compression == 0, "a compressed BMP file; compression:", compression
        )
        places = tf.io.decode_image(file, 3, expand_animations=False)[..., 0]
        # The palette, of four bytes for each color (blue, green, red, 0), lies between the headers
        # and the pixels.
        start = 14 + number(14, tf.int32)
        palette = tf.strings.substr(encoded, start, number(10, tf.int32) - start)
        colors = tf.reshape(tf.io.decode_raw(palette, tf.uint8), (-1, 4))[:, 2::-1]
        return tf.gather(colors, tf.cast(places, tf.int32))

    def without_palette():
        return tf.io.decode_image(encoded, channels, expand_animations=False)

    return tf.cond(number(28, tf.uint16) == 8, from_palette, without_palette)


def _decode_any(encoded, channels, bit_depth, widen, dct):
    """Decodes a file of any known format; see `decode`."""
    start = tf.strings.substr(encoded, 0, 4)

    def stored(channels):
        """Decodes to uint8 `(H, W, C)`; `channels=0` keeps the number of channels in the file."""
        decoders = [
            (tf.io.is_jpeg(encoded), lambda: _decode_jpeg(encoded, channels, dct)),
            (tf.strings.substr(start, 0, 2) == b"BM", lambda: _decode_bmp(encoded, channels)),
        ]
        if hasattr(tf.io, "decode_webp"):  # TensorFlow 2.20 lacks it
            # Drop an alpha channel, which TensorFlow's WebP decoder keeps.
            decoders.append(
                (start == b"RIFF", lambda: tf.io.decode_webp(encoded)[0, :, :, : channels or 4])
            )
        image = tf.case(
            decoders,
            default=lambda: tf.io.decode_image(encoded, channels, expand_animations=False),
        )
        return tf.ensure_shape(image, (None, None, channels or None))

    def eight_bits():
        if channels == 1:
            direct = (start == b"\x89PNG") | tf.io.is_jpeg(encoded)
            return tf.cond(direct, lambda: stored(1), lambda: tf.image.rgb_to_grayscale(stored(3)))
        return _of_channels(stored(3 if channels == 3 else 0), channels)

    if bit_depth == 8:
        return eight_bits()

    def png():
        image = tf.io.decode_png(encoded, channels if channels in (1, 3) else 0, tf.uint16)
        return _of_channels(tf.cast(image, tf.float32), channels)

    return tf.cond(start == b"\x89PNG", png, lambda: widen(eight_bits()))


def _of_channels(image, channels):
    """Returns the image; raises a TensorFlow error unless it has this number of channels."""
    stored = tf.shape(image)[2]
    image = checked(
        image,
        stored == channels,
        f"not an image with {channels} channels; number of channels:",
        stored,
    )
    return tf.ensure_shape(image, (None, None, channels))
