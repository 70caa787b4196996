"""Unusual and malformed requests, which must not crash the server."""

import io
import json
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
    "gray, JPEG": [_file(_photo("L"), "JPEG")],
    "transparent": [_file(_photo("RGBA"), "PNG")],
    "gray and transparent": [_file(_photo("LA"), "PNG")],
    "a palette": [_file(_photo().quantize(16), "PNG")],
    "one bit": [_file(_photo("1"), "PNG")],
    "progressive": [_file(_photo(), "JPEG", progressive=True)],
    "one pixel": [DOT],
    "a line": [_file(_photo(size=(90, 1)), "PNG")],
    "of several sizes and kinds": [JPEG, PNG, GIF, BMP, DOT],
}

BAD_IMAGES = {
    "empty": [b""],
    "one byte": [b"\xff"],
    "text": [b"What is on this picture?"],
    "HTML": [b"<!DOCTYPE html><html><body><img src='cat.jpg'></body></html>"],
    "SVG": [b'<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32"/>'],
    "PDF": [b"%PDF-1.7\n" + bytes(500)],
    "zeros": [bytes(1000)],
    "noise": [np.random.default_rng(2).bytes(1000)],
    "half a PNG": [PNG[: len(PNG) // 2]],
    "the header of a PNG": [PNG[:33]],
    "the first bytes of a PNG": [PNG[:8]],
    "half a JPEG": [JPEG[: len(JPEG) // 2]],
    "the header of a JPEG": [JPEG[:100]],
    "the first bytes of a JPEG": [JPEG[:3]],
    "a GIF of 4,295 megapixels": [GIF[:6] + b"\xff\xff\xff\xff" + GIF[10:]],
    "half a GIF": [GIF[: len(GIF) // 2]],
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


# Inputs of the signature `tensor`. The response to each must be an error or the model's output.
ARRAYS = {
    "a scalar": np.float32(0.5),
    "of rank 1": _images(3),
    "of rank 2": _images(1, 2),
    "without a batch axis": _images(*SIZE, 3),
    "of rank 5": _images(1, 1, *SIZE, 3),
    "of rank 5 with a last axis of size 1": _images(1, *SIZE, 3, 1),
    "of rank 8": _images(1, 1, 1, 1, 1, 1, 1, 1),
    "too high": _images(1, 65, 64, 3),
    "too narrow": _images(1, 64, 63, 3),
    "twice as large": _images(1, 128, 128, 3),
    "wider by one patch": _images(1, 64, 80, 3),
    "smaller": _images(1, 32, 48, 3),
    "of one channel": _images(1, *SIZE, 1),
    "of four channels": _images(1, *SIZE, 4),
    "with channels first": _images(1, 3, *SIZE),
    "of one pixel": _images(1, 1, 1, 3),
    "of zero images": _images(0, *SIZE, 3),
    "without rows": _images(2, 0, 64, 3),
    "without channels": _images(2, *SIZE, 0),
    "with a NaN": _with(np.nan),
    "with an infinite pixel": _with(np.inf),
    "with a negative infinite pixel": _with(-np.inf),
    "with a huge pixel": _with(1e38),
    "with values from 0 to 255": np.round(127.5 + 127.5 * _images(1, *SIZE, 3)),
    "of float64": _images(1, *SIZE, 3).astype("float64"),
    "of float16": _images(1, *SIZE, 3).astype("float16"),
    "of int32": np.ones((1, *SIZE, 3), "int32"),
    "of uint8": np.full((1, *SIZE, 3), 200, "uint8"),
    "of bool": np.ones((1, *SIZE, 3), "bool"),
    "of strings": np.full((1, *SIZE, 3), "0.5"),
    "10,000 small images": _images(10_000, 2, 2, 3),
}

_ROW = json.dumps(np.zeros((*SIZE, 3)).tolist())


def _tensor(members):
    """Returns the text of a JSON object with the signature `tensor` and other members."""
    return f'{{"signature_name": "tensor", {members}}}'


def _bytes(members):
    """Returns the text of a JSON object with the signature of image files and other members."""
    return f'{{"signature_name": "serving_default", {members}}}'


def _tensor_with(value):
    """Returns the body of a request for one image, whose first number is replaced by `value`."""
    return _tensor(f'"instances": [{_ROW.replace("0.0", value, 1)}]')


# Bodies of REST requests. The response to each must be an error.
BODIES = {
    "an empty body": "",
    "not JSON": "image",
    "half an object": '{"instances": [',
    "two objects": '{"instances": []} {}',
    "a list": "[]",
    "a string": '"instances"',
    "null": "null",
    "an empty object": "{}",
    "other keys": '{"images": [1]}',
    "rows and columns": _tensor(f'"instances": [{_ROW}], "inputs": [{_ROW}]'),
    "rows that are not a list": _tensor('"instances": 3'),
    "rows that are null": _tensor('"instances": null'),
    "no rows": _tensor('"instances": []'),
    "empty rows": _tensor('"instances": [[], []]'),
    "a row with null": _tensor_with("null"),
    "a row with a string": _tensor_with('""'),
    "a row with an object": _tensor_with("{}"),
    "a row with NaN": _tensor_with("NaN"),
    "a number too large for double": _tensor_with("1e999"),
    "a number too large for float": _tensor_with("1e99"),
    "lists of several lengths": _tensor('"instances": [[1, 2], [3]]'),
    "lists of several depths": _tensor('"instances": [[1, 2], [3, [4]]]'),
    "images of several sizes": _tensor(f'"instances": [{_ROW}, [[[0, 0, 0]]]]'),
    "a first row and many scalars": _tensor(f'"instances": [{_ROW}{", 1" * 1_000_000}]'),
    "lists in lists": _tensor(f'"instances": {"[" * 100_000}{"]" * 100_000}'),
    "objects in objects": '{"a": ' * 100_000 + "1" + "}" * 100_000,
    "a signature that does not exist": f'{{"signature_name": "features", "instances": [{_ROW}]}}',
    "an internal signature": '{"signature_name": "__saved_model_init_op", "inputs": {}}',
    "a signature without a name": f'{{"signature_name": "", "instances": [{_ROW}]}}',
    "a signature that is a number": f'{{"signature_name": 3, "instances": [{_ROW}]}}',
    "an input that does not exist": _tensor(f'"inputs": {{"pictures": [{_ROW}]}}'),
    "one input too many": _tensor(f'"inputs": {{"images": [{_ROW}], "more": [1]}}'),
    "no input": _tensor('"inputs": {}'),
    "an input that is not a list": _tensor('"inputs": {"images": 1}'),
    "a row without inputs": _tensor(f'"instances": [{{"images": {_ROW}}}, {{}}]'),
    "rows with different inputs": _tensor(
        f'"instances": [{{"images": {_ROW}}}, {{"pictures": {_ROW}}}]'
    ),
    "a key twice": _tensor(f'"instances": [{_ROW}], "instances": [{_ROW}]'),
    "broken base64": _bytes('"instances": [{"b64": "%%%%"}]'),
    "base64 without padding": _bytes('"instances": [{"b64": "iVBORw0KGgo"}]'),
    "base64 of no bytes": _bytes('"instances": [{"b64": ""}]'),
    "base64 that is a number": _bytes('"instances": [{"b64": 3}]'),
    "base64 that is null": _bytes('"instances": [{"b64": null}]'),
    "base64 under another key": _bytes('"instances": [{"base64": "aGVsbG8="}]'),
    "base64 and more": _bytes('"instances": [{"b64": "aGVsbG8=", "more": 1}]'),
    "base64 instead of numbers": _tensor('"instances": [{"b64": "aGVsbG8="}]'),
    "numbers instead of bytes": _bytes('"instances": [1, 2, 3]'),
    "bytes in lists": _bytes('"instances": [[{"b64": "aGVsbG8="}]]'),
    "half a surrogate pair": _bytes('"instances": ["\\ud800"]'),
    "a file name": _bytes('"instances": ["/etc/passwd"]'),
    "bytes that are not UTF-8": b'{"instances": ["\xff\xfe"]}',
    "a compressed body": zlib.compress(b"{}"),
    "zeros": bytes(1000),
}

_HEAD = "POST /v1/models/golden:predict HTTP/1.1\r\nHost: localhost\r\n"

# Raw bytes for the server's port. The server must answer each with an error or disconnect.
RAW_REQUESTS = {
    "no bytes": "",
    "noise": np.random.default_rng(4).bytes(5000),
    "a TLS request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "one word": "GET\r\n\r\n",
    "another protocol": "GET / SPDY/3\r\n\r\n",
    "no path": "GET HTTP/1.1\r\n\r\n",
    "endless headers": _HEAD + "X: y\r\n" * 10_000,
    "an endless header": _HEAD + "X: " + "y" * 100_000,
    "a header without a colon": _HEAD + "Content-Length\r\n\r\n",
    "a space before a colon": _HEAD + "Content-Length : 2\r\n\r\n{}",
    "a folded header": _HEAD + "X: y\r\n Content-Length: 2\r\n\r\n",
    "a header without a name": _HEAD + ": 2\r\n\r\n{}",
    "a body on GET": "GET /v1/models/golden HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "half a request": _HEAD + "Content-Le",
    "half a body": _HEAD + "Content-Length: 1000\r\n\r\n{",
    "no length": _HEAD + "\r\n{}",
    "two lengths": _HEAD + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "a negative length": _HEAD + "Content-Length: -1\r\n\r\n{}",
    "a length that is a word": _HEAD + "Content-Length: two\r\n\r\n{}",
    "a length of 30 digits": _HEAD + f"Content-Length: {'9' * 30}\r\n\r\n",
    "a length above the limit": _HEAD + f"Content-Length: {10**12}\r\n\r\n{{}}",
    "a body in chunks": _HEAD + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "another model": _HEAD.replace("golden", "silver") + "Content-Length: 2\r\n\r\n{}",
    "another version": _HEAD.replace("golden", "golden/versions/7") + "Content-Length: 2\r\n\r\n{}",
    "a version that is a word": (
        _HEAD.replace("golden", "golden/versions/new") + "Content-Length: 2\r\n\r\n{}"
    ),
    "another verb": _HEAD.replace("predict", "explain") + "Content-Length: 2\r\n\r\n{}",
    "another method": "DELETE /v1/models/golden HTTP/1.1\r\n\r\n",
    "path traversal": "GET /v1/models/../../etc/passwd HTTP/1.1\r\n\r\n",
}
