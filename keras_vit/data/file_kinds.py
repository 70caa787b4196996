"""Finds out how image files store their pixels."""

import tensorflow as tf

from keras_vit.data.images import PNG_SIGNATURE, orientation

# An eager call takes 20 times as long.
orientation_of = tf.function(
    orientation, input_signature=[tf.TensorSpec((), tf.string)], autograph=False
)
KINDS = {
    "rotated": "EXIF rotates them if --config.data.exif is on",
    "palette": "their colors are looked up",
    "gray": "their values are repeated for three channels",
    "12-bit": "PNG files of 16 bits without values above 4095 look black; set "
    "--config.data.bit_depth=16, mean and std",
}


def kinds_of(encoded):
    """Returns the `KINDS` that an image file, a `bytes`, belongs to; [] if it is damaged."""
    try:
        if encoded.startswith(b"GIF8"):
            return ["palette"]
        if encoded.startswith(b"\xff\xd8"):
            conditions = {
                "rotated": orientation_of(encoded) > 1,
                "gray": tf.image.extract_jpeg_shape(encoded)[2] == 1,
            }
            return [kind for kind, holds in conditions.items() if holds]
        if not encoded.startswith(PNG_SIGNATURE) or len(encoded) < 26:
            return []
        bits, color_type = encoded[24:26]
        kinds = {0: ["gray"], 3: ["palette"], 4: ["gray"]}.get(color_type, [])
        if bits == 16 and tf.reduce_max(tf.io.decode_png(encoded, dtype=tf.uint16)) < 4096:
            kinds.append("12-bit")
        return kinds
    except tf.errors.OpError:
        return []
