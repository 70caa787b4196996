"""Unusual and malformed images and arrays, which must not crash the server."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

SIZE = (64, 64)  # image height and width of the served model


def _photo(mode="RGB", size=(50, 37)):
    """Returns an image of random pixels."""
    width, height = size
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 4), dtype=np.uint8)
    if mode.endswith("A"):
        image = Image.fromarray(pixels, "RGBA")
    else:
        image = Image.fromarray(pixels, "RGBX")
    return image.convert(mode)


def _file(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _png_chunk(name, content):
    checksum = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + checksum


def _png_of_size(width, height, bits=8, data=b""):
    """Returns an RGB PNG with the given header and any pixel data."""
    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _png_chunk(b"IHDR", header)
        + _png_chunk(b"IDAT", zlib.compress(data))
        + _png_chunk(b"IEND", b"")
    )


def _png_of_16_bits():
    pixels = np.random.default_rng(1).integers(0, 65536, (5, 7, 3)).astype(">u2")
    # A zero byte before each line of pixels means that the line is not filtered.
    return _png_of_size(7, 5, bits=16, data=b"".join(b"\0" + line.tobytes() for line in pixels))


def _jpeg_of_size(width, height):
    """Returns a JPEG whose header contains the given size instead of its true size."""
    # The size follows the marker, length and precision of the frame header.
    start = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:start] + struct.pack(">HH", height, width) + JPEG[start + 4 :]


JPEG = _file(_photo(), "JPEG")
PNG = _file(_photo(), "PNG")
GIF = _file(_photo(), "GIF")
BMP = _file(_photo(), "BMP")
ANIMATED_GIF = _file(
    _photo(), "GIF", save_all=True, append_images=[_photo().rotate(90), _photo().rotate(180)]
)
DOT = _file(Image.new("RGB", (1, 1), (10, 20, 30)), "PNG")

# Unusual images. They must be decoded as in evaluation.
ODD_IMAGES = {
    "an animated GIF": [ANIMATED_GIF],
    "CMYK": [_file(_photo("CMYK"), "JPEG")],
    "16 bits per channel": [_png_of_16_bits()],
    "gray": [_file(_photo("L"), "PNG")],
    "transparent": [_file(_photo("RGBA"), "PNG")],
    "gray and transparent": [_file(_photo("LA"), "PNG")],
    "a palette": [_file(_photo().quantize(16), "PNG")],
    "progressive": [_file(_photo(), "JPEG", progressive=True)],
    "one pixel": [DOT],
    "of several sizes and kinds": [JPEG, PNG, GIF, BMP, DOT],
}

BAD_IMAGES = {
    "empty": [b""],
    "text": [b"What is on this picture?"],
    "noise": [np.random.default_rng(2).bytes(1000)],
    "half a PNG": [PNG[: len(PNG) // 2]],
    "the header of a PNG": [PNG[:33]],
    "half a JPEG": [JPEG[: len(JPEG) // 2]],
    "the first bytes of a JPEG": [JPEG[:3]],
    "a GIF of 4,295 megapixels": [GIF[:6] + b"\xff\xff\xff\xff" + GIF[10:]],
    "the first bytes of a GIF": [GIF[:6]],
    "half a BMP": [BMP[: len(BMP) // 2]],
    "the first bytes of a BMP": [BMP[:2]],
    "a PNG with a flipped bit": [PNG[:200] + bytes([PNG[200] ^ 1]) + PNG[201:]],
    "a PNG of 300 megapixels": [_png_of_size(20_000, 15_000)],
    "a PNG with the largest size": [_png_of_size(2**31 - 1, 2**31 - 1)],
    "a PNG with a negative size": [_png_of_size(2**32 - 1, 5)],
    "a PNG without pixels": [_png_of_size(0, 0)],
    "a JPEG of 300 megapixels": [_jpeg_of_size(20_000, 15_000)],
    "a JPEG without pixels": [_jpeg_of_size(0, 0)],
    "a BMP of 300 megapixels": [BMP[:18] + struct.pack("<ii", 20_000, 15_000) + BMP[26:]],
    "a BMP with the lowest size": [BMP[:18] + struct.pack("<ii", -(2**31), -(2**31)) + BMP[26:]],
    "a WebP without an image": [b"RIFF\x40\x00\x00\x00WEBPVP8 " + bytes(60)],
    "a good image and a bad image": [JPEG, b"no image"],
    "no images": [],
    "10,000 images": [DOT] * 10_000,
}


def _images(*shape):
    return np.random.default_rng(3).uniform(-1, 1, shape).astype("float32")


def _with(value):
    images = _images(2, *SIZE, 3)
    images[1, 5, 6, 1] = value
    return images


# Unusual inputs of the signature `tensor`. The response must be the model's output.
ODD_ARRAYS = {
    "with values from 0 to 255": np.round(127.5 + 127.5 * _images(1, *SIZE, 3)),
}

BAD_ARRAYS = {
    "a scalar": np.float32(0.5),
    "of rank 1": _images(3),
    "without a batch axis": _images(*SIZE, 3),
    "of rank 5": _images(1, 1, *SIZE, 3),
    "of rank 5 with a last axis of size 1": _images(1, *SIZE, 3, 1),
    "too high": _images(1, 65, 64, 3),
    "wider by one patch": _images(1, 64, 80, 3),
    "of one channel": _images(1, *SIZE, 1),
    "with channels first": _images(1, 3, *SIZE),
    "of zero images": _images(0, *SIZE, 3),
    "without rows": _images(2, 0, 64, 3),
    "with a NaN": _with(np.nan),
    "with an infinite pixel": _with(np.inf),
    "of bool": np.ones((1, *SIZE, 3), "bool"),
    "of strings": np.full((1, *SIZE, 3), "0.5"),
}
