"""Tests of `kinds_of`, which finds how a file stores its pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from keras_vit.data.file_kinds import kinds_of


def _encode(mode, file_format, largest=255):
    """Returns the bytes of an image file. Images with 16 bits have the value `largest`."""
    if mode == "I;16":
        image = Image.fromarray(np.full((4, 6), largest, np.uint16))
    else:
        image = Image.new("RGB", (6, 4), (200, 20, 20)).convert(mode)
    file = io.BytesIO()
    image.save(file, file_format)
    return file.getvalue()


@pytest.mark.parametrize(
    ("mode", "file_format", "kinds"),
    [
        ("RGB", "JPEG", []),
        ("RGB", "PNG", []),
        ("RGB", "BMP", []),
        ("RGB", "WEBP", []),
        ("L", "JPEG", ["gray"]),
        ("LA", "PNG", ["gray"]),
        ("P", "PNG", ["palette"]),
        ("P", "GIF", ["palette"]),
    ],
)
def test_kinds_of_files(mode, file_format, kinds):
    assert kinds_of(_encode(mode, file_format)) == kinds


def test_png_with_values_below_4096_has_12_bits():
    assert kinds_of(_encode("I;16", "PNG", largest=4095)) == ["gray", "12-bit"]
    assert kinds_of(_encode("I;16", "PNG", largest=4096)) == ["gray"]


@pytest.mark.parametrize(("mode", "file_format"), [("L", "JPEG"), ("I;16", "PNG"), ("L", "BMP")])
@pytest.mark.parametrize("size", [1, 3, 9, 25, 60])
def test_truncated_files_raise_no_error(mode, file_format, size):
    kinds = kinds_of(_encode(mode, file_format)[:size])
    assert set(kinds) <= {"gray", "palette", "12-bit"}
