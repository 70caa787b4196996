"""The first picture of a GIF: its size, and a file of it alone.

TensorFlow reads all pictures to return the first, and makes each as high and as wide as the largest of them. What the
header says of the whole file has no influence on that.
"""

import tensorflow as tf

_EXTENSION, _PICTURE, _END = 0x21, 0x2C, b"\x3b"
_PADDING = 1024  # zeros behind the bytes of a file, for those that are cut short
_MOST_PICTURES = 1000


def picture_size(encoded):
    """The size of the first picture, int32 `(height, width)`; zeros where there is none."""
    return tf.stack(_walk(_bytes(encoded), lambda first, end, pictures: first < 0)[3:])


def first_picture(encoded):
    """The bytes of a GIF with one picture, the first of another GIF; none where that one has no whole picture."""
    end = _walk(_bytes(encoded), lambda first, end, pictures: end < 0)[1]
    picture = tf.strings.join([tf.strings.substr(encoded, 0, tf.maximum(end, 0)), _END])
    return tf.where(end < 0, b"", picture)


def all_pictures(encoded):
    """How many pictures a GIF has, and the size of the largest: int32 `(pictures, height, width)`.

    No more than 1,000 are counted.
    """
    return tf.stack(_walk(_bytes(encoded), lambda first, end, pictures: pictures < _MOST_PICTURES)[2:])


def _walk(data, going_on):
    """Follows the blocks of a GIF.

    A block may be of one byte, and a file of such blocks would take seconds; those of real files have 255. So the
    number of steps is bounded: a picture behind more of them is not found.

    Args:
        data: what `_bytes` returns.
        going_on: a function of what is returned, whether to look further.

    Returns:
        Five int32 scalars: where the descriptor of the first picture is, and where that picture ends, both -1 where
        there is none; how many pictures there are so far; and the largest height and width of them.
    """
    size = tf.size(data) - _PADDING
    most_steps = size // 64 + 1000

    def within(step, at, in_blocks, first, end, pictures, *_):
        is_known = in_blocks | (data[at] == _EXTENSION) | (data[at] == _PICTURE)
        return (step < most_steps) & (at < size) & is_known & going_on(first, end, pictures)

    def follow(step, at, in_blocks, first, end, pictures, *size_so_far):
        # A chain of blocks, each of which begins with its length, ends with one of length 0.
        length = data[at]
        is_end, is_picture = in_blocks & (length == 0), ~in_blocks & (length == _PICTURE)
        end = tf.where(is_end & (first >= 0) & (end < 0), at + 1, end)
        first = tf.where(is_picture & (first < 0), at, first)
        # A picture has a descriptor of ten bytes, its colors, and a byte that begins its code.
        head = tf.where(is_picture, 10 + _colors(data[at + 9]) + 1, 2)
        picture_size = [tf.where(is_picture, _number(data, at + place), 0) for place in (7, 5)]
        size_so_far = [tf.maximum(one, other) for one, other in zip(size_so_far, picture_size)]
        at = tf.minimum(at + tf.where(in_blocks, 1 + length, head), size)
        return step + 1, at, ~is_end, first, end, pictures + tf.cast(is_picture, tf.int32), *size_so_far

    start = tf.minimum(13 + _colors(data[10]), size)
    zero, none = tf.constant(0), tf.constant(-1)
    return tf.while_loop(within, follow, (zero, start, tf.constant(False), none, none, zero, zero, zero))[3:]


def _bytes(encoded):
    """All bytes as int32, with zeros after them."""
    return tf.pad(tf.cast(tf.io.decode_raw(encoded, tf.uint8), tf.int32), [[0, _PADDING]])


def _colors(flags):
    """The bytes of a table of colors."""
    return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(2, flags % 8), 0)


def _number(data, at):
    return data[at] + 256 * data[at + 1]
