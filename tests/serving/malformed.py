"""Unusual and malformed images and arrays, which must not crash the server."""

import io
import struct
import zlib

import numpy as np
import tensorflow as tf
from PIL import Image

PIXELS = np.random.default_rng(0).integers(0, 256, (37, 50, 3), dtype=np.uint8)
PHOTO = Image.fromarray(PIXELS)


def _file(kind, image=PHOTO, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _png_chunk(name, content):
    checksum = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + checksum


def _png_of_size(width, height):
    """Returns an RGB PNG with the given size in its header and without pixels."""
    return (
        b"\x89PNG\r\n\x1a\n"
        + _png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + _png_chunk(b"IDAT", zlib.compress(b""))
        + _png_chunk(b"IEND", b"")
    )


def _jpeg_of_size(width, height):
    """Returns a JPEG whose header contains the given size instead of its true size."""
    # The size follows the marker, length and precision of the frame header.
    start = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:start] + struct.pack(">HH", height, width) + JPEG[start + 4 :]


JPEG, PNG, GIF, BMP = map(_file, ("JPEG", "PNG", "GIF", "BMP"))
DOT = _file("PNG", Image.new("RGB", (1, 1), (10, 20, 30)))

# Unusual images. They must be decoded as in evaluation.
ODD_IMAGES = {
    "an animated GIF": [_file("GIF", save_all=True, append_images=[PHOTO.rotate(180)])],
    "CMYK": [_file("JPEG", PHOTO.convert("CMYK"))],
    "gray and transparent": [_file("PNG", PHOTO.convert("LA"))],
    "16 bits per channel": [tf.io.encode_png(256 * PIXELS.astype("uint16")).numpy()],
    "of several sizes and kinds": [JPEG, PNG, GIF, BMP, DOT],
}

BAD_IMAGES = {
    "empty": [b""],
    "text": [b"What is on this picture?"],
    "half a PNG": [PNG[: len(PNG) // 2]],
    "half a JPEG": [JPEG[: len(JPEG) // 2]],
    "the first bytes of a JPEG": [JPEG[:3]],
    "a GIF of 4,295 megapixels": [GIF[:6] + b"\xff\xff\xff\xff" + GIF[10:]],
    "half a BMP": [BMP[: len(BMP) // 2]],
    "the first bytes of a BMP": [BMP[:2]],
    "a PNG with the largest size": [_png_of_size(2**31 - 1, 2**31 - 1)],
    "a PNG with a negative size": [_png_of_size(2**32 - 1, 5)],
    "a PNG without pixels": [_png_of_size(0, 0)],
    "a JPEG of 300 megapixels": [_jpeg_of_size(20_000, 15_000)],
    "a BMP with the lowest size": [BMP[:18] + struct.pack("<ii", -(2**31), -(2**31)) + BMP[26:]],
    "a WebP without an image": [b"RIFF\x40\x00\x00\x00WEBPVP8 " + bytes(60)],
    "10,000 images": [DOT] * 10_000,
}


# Arrays that the model, which takes images (64, 64, 3), does not accept.
BAD_ARRAYS = {
    "a scalar": np.float32(0.5),
    "without a batch axis": np.zeros((64, 64, 3)),
    "of rank 5": np.zeros((1, 1, 64, 64, 3)),
    "too wide": np.zeros((1, 64, 80, 3)),
    "of one channel": np.zeros((1, 64, 64, 1)),
    "of zero images": np.zeros((0, 64, 64, 3)),
    "without rows": np.zeros((2, 0, 64, 3)),
    "with an infinite pixel": np.full((1, 64, 64, 3), np.inf),
}
