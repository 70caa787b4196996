"""The first picture of a GIF: its size, and a file of it alone.

A picture may be larger than the header says of the whole file, and TensorFlow reads all of them to return the first.
"""

import tensorflow as tf

_EXTENSION, _PICTURE, _END = 0x21, 0x2C, b"\x3b"


def picture_size(encoded):
    """The size of the decoded first picture, int32 `(height, width)`; zeros where there is none."""
    data = _bytes(encoded)
    at = _first_picture(data)
    x_offset, y_offset, width, height = [_number(data, at + place) for place in (1, 3, 5, 7)]
    size = tf.stack([tf.maximum(_number(data, 8), y_offset + height), tf.maximum(_number(data, 6), x_offset + width)])
    return tf.where(data[at] == _PICTURE, size, 0)


def first_picture(encoded):
    """The bytes of a GIF with one picture, the first of another GIF."""
    data = _bytes(encoded)
    at = _first_picture(data)
    # Its descriptor of ten bytes, its colors, the byte that begins its code, its blocks.
    end = _after_blocks(data, at + 10 + _colors(data[at + 9]) + 1)
    return tf.strings.join([tf.strings.substr(encoded, 0, end), _END])


def count_pictures(encoded):
    """How many pictures a GIF has, an int32 scalar; no more than 1,000 are counted."""
    data = _bytes(encoded)

    def next_picture(at, count):
        end = _after_blocks(data, at + 10 + _colors(data[at + 9]) + 1)
        return _after_extensions(data, end), count + 1

    first = _first_picture(data)
    in_file = lambda at, count: (at < tf.size(data) - 1024) & (data[at] == _PICTURE) & (count < 1000)  # noqa: E731
    return tf.while_loop(in_file, next_picture, (first, tf.constant(0)))[1]


def _bytes(encoded):
    """All bytes as int32, with zeros after them for files that are cut short."""
    return tf.pad(tf.cast(tf.io.decode_raw(encoded, tf.uint8), tf.int32), [[0, 1024]])


def _first_picture(data):
    """Where the descriptor of the first picture is: after the header, its colors and all extensions."""
    return _after_extensions(data, 13 + _colors(data[10]))


def _after_extensions(data, at):
    """Where a chain of extensions ends."""
    return tf.while_loop(
        lambda at: (at < tf.size(data) - 1024) & (data[at] == _EXTENSION),
        lambda at: (_after_blocks(data, at + 2),),
        (at,),
    )[0]


def _after_blocks(data, at):
    """Where a chain of blocks ends, each of which begins with its length, the last with 0."""
    last = tf.size(data) - 257  # a block is no longer, so that no step leaves the zeros at the end
    return 1 + tf.while_loop(lambda at: (at < last) & (data[at] > 0), lambda at: (at + 1 + data[at],), (at,))[0]


def _colors(flags):
    """The bytes of a table of colors."""
    return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(2, flags % 8), 0)


def _number(data, at):
    return data[at] + 256 * data[at + 1]
