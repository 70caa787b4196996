"""Decodes image files inside `tf.data`, after checking their sizes.

The formats are JPEG, PNG, GIF (the first frame), BMP and, on TensorFlow 2.21 or later, WebP without
animation.

For three channels, gray values are repeated, alpha channels are dropped, palettes are applied and
CMYK is converted. For one channel, colors are converted to gray. Any other number of channels must
match the file. Compressed BMP files are refused. EXIF orientation is ignored by default.
"""

import re

import tensorflow as tf

from keras_vit.data import transforms

_JPEG_END = b"\xff\xd9"
PNG_SIGNATURE = b"\x89PNG"  # its first four bytes
# The EXIF orientations whose images must be mirrored horizontally, and for each orientation (from
# 1; entry 0 is unused) the number of counterclockwise rotations by 90 degrees that follow.
_MIRRORED = (2, 4, 5, 7)
_ROTATIONS = (0, 0, 0, 2, 2, 1, 3, 3, 1)


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
    dct = "" if library == "vit_jax" else "INTEGER_ACCURATE"  # INTEGER_ACCURATE is Pillow's method

    def jpeg():
        size = tf.image.extract_jpeg_shape(encoded)[:2]
        file = _checked_size(encoded, size, max_megapixels)
        image = _decode_jpeg(file, channels, dct, None if window is None else window(size))
        return _widened(image, bit_depth)

    # Prevent inlining, because TensorFlow visits all operations of an inlined branch even if the
    # branch is not taken.
    @tf.function(experimental_attributes={"_noinline": True})
    def other():
        file = _checked_size(encoded, header_size(encoded), max_megapixels)
        image = _decode_any(file, channels, bit_depth, dct)
        if window is None:
            return image
        return transforms.crop(image, window(tf.shape(image)[:2]))

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
    rotations, is_mirrored = _orientation_parts(encoded)
    return tf.image.rot90(transforms.mirror(image, is_mirrored), rotations)


def as_stored(image, encoded):
    """Undoes `upright`."""
    rotations, is_mirrored = _orientation_parts(encoded)
    return transforms.mirror(tf.image.rot90(image, -rotations), is_mirrored)


def _orientation_parts(encoded):
    """Returns the number of rotations of a file, and whether it must be mirrored."""
    number = orientation(encoded)
    return tf.gather(_ROTATIONS, number), tf.reduce_any(number == _MIRRORED)


def header_size(encoded):
    """Returns the size in the header of an image file, int32 `(height, width)`; both numbers are 0
    for an unsupported file."""
    png = PNG_SIGNATURE + b"\r\n\x1a\n\0\0\0\rIHDR"

    def pair(start, dtype, little_endian=True):
        """Returns `(height, width)` of a file that stores the width at byte `start`, and the height
        after it."""
        return integers(encoded, start, 2, dtype, little_endian)[::-1]

    def webp():
        kind = tf.strings.substr(_head(encoded, 16), 12, 4)
        # An animation gets size 0, because it may have any number of frames.
        is_still = 1 - integers(encoded, 20, 1, tf.uint8) // 2 % 2
        sides = [integers(encoded, start, 1, tf.int32) % 2**24 + 1 for start in (27, 24)]
        extended = is_still * tf.concat(sides, 0)
        packed = integers(encoded, 21, 1, tf.int32)
        lossless = tf.concat([packed // 2**14, packed], 0) % 2**14 + 1
        lossy = pair(26, tf.uint16) % 2**14
        sizes = tf.stack([extended, lossless, lossy])
        return tf.reduce_sum(tf.where((kind == [b"VP8X", b"VP8L", b"VP8 "])[:, None], sizes, 0), 0)

    return tf.case(
        [
            (tf.io.is_jpeg(encoded), lambda: tf.image.extract_jpeg_shape(encoded)[:2]),
            # The PNG format requires the header (IHDR) to come first, although the decoder accepts
            # it elsewhere.
            (starts_with(encoded, png), lambda: pair(16, tf.int32, little_endian=False)),
            (starts_with(encoded, b"GIF8"), lambda: pair(6, tf.uint16)),
            # The height of a BMP is negative if its rows are stored top-down.
            (starts_with(encoded, b"BM"), lambda: tf.abs(pair(18, tf.int32))),
            (starts_with(encoded, b"RIFF"), webp),
        ],
        default=lambda: tf.zeros([2], tf.int32),
    )


def integers(encoded, start, count, dtype, little_endian=True):
    """Returns `count` integers that a file stores as `dtype` from byte `start` on, as int32; zeros
    follow the end of the file."""
    length = count * dtype.size
    stored = tf.strings.substr(_head(encoded, start + length), start, length)
    return tf.cast(tf.io.decode_raw(stored, dtype, little_endian, length), tf.int32)


def _head(encoded, length):
    """Returns the first `length` bytes of a file and some zeros."""
    return tf.strings.join([tf.strings.substr(encoded, 0, length), bytes(length)])


def orientation(encoded):
    """Returns the EXIF orientation of a JPEG, int32 from 1 to 8.

    Returns 1 (upright) if the first 4096 bytes of the file do not specify the orientation.
    """
    head = tf.strings.substr(encoded, 0, 4096)
    values = [tf.constant([1])]
    # Find the directory entry of the tag, big- or little-endian: tag 0x0112, type SHORT (3), count
    # 1, and the value.
    for entry in (b"\x01\x12\0\x03\0\0\0\x01\0", b"\x12\x01\x03\0\x01\0\0\0"):
        after = tf.strings.split(head, entry)[1:2]
        values.append(tf.reshape(integers(after, 0, 1, tf.uint8), [-1]))
    largest = tf.reduce_max(tf.concat(values, 0))
    return tf.where(tf.io.is_jpeg(encoded) & (largest <= 8), largest, 1)


def starts_with(encoded, start):
    """Returns whether the first bytes of a file are `start`."""
    return tf.strings.substr(encoded, 0, len(start)) == start


def checked(value, condition, message, received):
    """Returns `value`; raises a TensorFlow error with `message` and `received` if `condition` is
    False."""
    # Use the raw op, because `tf.debugging.Assert` adds a conditional, which costs more than
    # reading a header.
    with tf.control_dependencies(
        [tf.raw_ops.Assert(condition=condition, data=[message, received])]
    ):
        return tf.identity(value)


def reason_of(error):
    """Returns the reason in a `tf.errors.OpError` in one line, without stack traces and names of
    operations."""
    without_operations = re.sub(r"\{\{\w+ [^}]*\}\}", " ", error.message)
    stack = ("Graph execution error", "Detected at node", "File ", "<stack", "Stack trace", "[[")
    lines = map(str.strip, without_operations.splitlines())
    reasons = [line for line in lines if line and not line.startswith(stack)]
    reason = reasons[0].split(" [Op:")[0] if reasons else "it cannot be decoded"
    return " ".join(reason.removeprefix("assertion failed: ").split())[:300]


def _widened(image, bit_depth):
    """Returns an 8-bit image as float32 in [0, 65535] if `bit_depth` is 16."""
    return 257.0 * tf.cast(image, tf.float32) if bit_depth == 16 else image


def _checked_size(encoded, size, max_megapixels):
    """Returns the file; raises a TensorFlow error if its format is unknown (size 0) or it has too
    many pixels."""
    area = tf.reduce_prod(tf.cast(size, tf.float64))
    too_large = f"larger than {max_megapixels:g} megapixels (max_megapixels); height and width:"
    message = tf.where(area > 0, too_large, "not an image in a known format; height and width:")
    return checked(encoded, (area > 0) & (area <= max_megapixels * 1e6), message, size)


def _decode_jpeg(encoded, channels, dct, window=None):
    """Decodes a JPEG file, or the window (y, x, height, width) of it, to uint8 `(H, W, C)`."""

    def read(wanted):
        if window is None:
            return tf.io.decode_jpeg(encoded, wanted, dct_method=dct)
        return tf.io.decode_and_crop_jpeg(encoded, window, wanted, dct_method=dct)

    if channels != 1:
        return read(channels)
    is_cmyk = tf.image.extract_jpeg_shape(encoded)[2] == 4  # libjpeg does not convert CMYK to gray
    return tf.cond(is_cmyk, lambda: tf.image.rgb_to_grayscale(read(3)), lambda: read(1))


def _decode_bmp(encoded, channels):
    """Decodes a BMP file; looks up the colors of a palette, which TensorFlow does not."""

    def from_palette():
        compression = integers(encoded, 30, 1, tf.int32)[0]
        file = checked(
            encoded, compression == 0, "a compressed BMP file; compression:", compression
        )
        indices = tf.io.decode_image(file, 3, expand_animations=False)[..., 0]
        # The palette, of four bytes for each color (blue, green, red, 0), lies between the headers
        # and the pixels.
        pixels, header_length = tf.unstack(integers(encoded, 10, 2, tf.int32))
        start = 14 + header_length
        palette = tf.strings.substr(encoded, start, pixels - start)
        colors = tf.reshape(tf.io.decode_raw(palette, tf.uint8), (-1, 4))[:, 2::-1]
        return tf.gather(colors, tf.cast(indices, tf.int32))

    def without_palette():
        return tf.io.decode_image(encoded, channels, expand_animations=False)

    bits_per_pixel = integers(encoded, 28, 1, tf.uint16)[0]
    return tf.cond(bits_per_pixel == 8, from_palette, without_palette)


def _decode_any(encoded, channels, bit_depth, dct):
    """Decodes a file of any known format; see `decode`."""
    is_png = starts_with(encoded, PNG_SIGNATURE)

    def stored(wanted):
        """Decodes to uint8 `(H, W, C)`; `wanted=0` keeps the number of channels in the file."""
        decoders = [
            (tf.io.is_jpeg(encoded), lambda: _decode_jpeg(encoded, wanted, dct)),
            (starts_with(encoded, b"BM"), lambda: _decode_bmp(encoded, wanted)),
        ]
        if hasattr(tf.io, "decode_webp"):  # TensorFlow 2.20 lacks it
            # Drop an alpha channel, which TensorFlow's WebP decoder keeps.
            decoders.append(
                (
                    starts_with(encoded, b"RIFF"),
                    lambda: tf.io.decode_webp(encoded)[0, :, :, : wanted or 4],
                )
            )
        image = tf.case(
            decoders,
            default=lambda: tf.io.decode_image(encoded, wanted, expand_animations=False),
        )
        return tf.ensure_shape(image, (None, None, wanted or None))

    def eight_bits():
        if channels == 1:
            converts = is_png | tf.io.is_jpeg(encoded)
            return tf.cond(
                converts, lambda: stored(1), lambda: tf.image.rgb_to_grayscale(stored(3))
            )
        return _of_channels(stored(3 if channels == 3 else 0), channels)

    if bit_depth == 8:
        return eight_bits()

    def png():
        image = tf.io.decode_png(encoded, channels if channels in (1, 3) else 0, tf.uint16)
        return _of_channels(tf.cast(image, tf.float32), channels)

    return tf.cond(is_png, png, lambda: _widened(eight_bits(), bit_depth))


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
