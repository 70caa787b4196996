"""The first picture of a GIF: its size, and a file of it alone.

A picture may be larger than what the header says of the whole file, and TensorFlow reads all of them to give the first.
"""

import tensorflow as tf

_EXTENSION, _PICTURE, _END = 0x21, 0x2C, b"\x3b"


def picture_size(encoded):
    """The size that decoding the first picture gives, int32 `(height, width)`; zeros where there is none."""
    data = _bytes(encoded)
    at = _first_picture(data)
    left, top, width, height = [_number(data, at + place) for place in (1, 3, 5, 7)]
    size = tf.stack([tf.maximum(_number(data, 8), top + height), tf.maximum(_number(data, 6), left + width)])
    return tf.where(data[at] == _PICTURE, size, 0)


def first_picture(encoded):
    """The bytes of a GIF with one picture, the first of another GIF."""
    data = _bytes(encoded)
    at = _first_picture(data)
    # Its descriptor of ten bytes, its colours, the byte that begins its code, its blocks.
    end = _after_blocks(data, at + 10 + _colours(data[at + 9]) + 1)
    return tf.strings.join([tf.strings.substr(encoded, 0, end), _END])


def _bytes(encoded):
    """All bytes as int32, and zeros to be found after a file that is cut short."""
    return tf.pad(tf.cast(tf.io.decode_raw(encoded, tf.uint8), tf.int32), [[0, 1024]])


def _first_picture(data):
    """Where the descriptor of the first picture is: after the header, its colours and all extensions."""
    return tf.while_loop(
        lambda at: (at < tf.size(data) - 1024) & (data[at] == _EXTENSION),
        lambda at: (_after_blocks(data, at + 2),),
        (13 + _colours(data[10]),),
    )[0]


def _after_blocks(data, at):
    """Where a chain of blocks ends, each of which begins with its length, the last with 0."""
    last = tf.size(data) - 257  # a block is no longer, so that no step leaves the zeros at the end
    return 1 + tf.while_loop(lambda at: (at < last) & (data[at] > 0), lambda at: (at + 1 + data[at],), (at,))[0]


def _colours(flags):
    """The bytes of a table of colours."""
    return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(2, flags % 8), 0)


def _number(data, at):
    return data[at] + 256 * data[at + 1]
