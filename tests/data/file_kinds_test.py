"""Tests of `kinds_of`, which finds how a file stores its pixels."""

import numpy as np
import pytest

from keras_vit.data.file_kinds import kinds_of

from .helpers import encoded, png, smooth_image

IMAGE = smooth_image(4, 6)


@pytest.mark.parametrize(
    ("mode", "file_format", "kinds"),
    [
        ("RGB", "JPEG", []),
        ("RGB", "PNG", []),
        ("RGB", "BMP", []),
        ("L", "JPEG", ["gray"]),
        ("L", "PNG", ["gray"]),
        ("LA", "PNG", ["gray"]),
        ("P", "PNG", ["palette"]),
        ("P", "GIF", ["palette"]),
    ],
)
def test_kinds_of_files(mode, file_format, kinds):
    assert kinds_of(encoded(IMAGE, file_format, mode)) == kinds


@pytest.mark.parametrize(("largest", "kinds"), [(4095, ["gray", "12-bit"]), (4096, ["gray"])])
def test_png_with_values_below_4096_has_12_bits(largest, kinds):
    assert kinds_of(png(np.full((4, 6, 1), largest, np.uint16))) == kinds


@pytest.mark.parametrize("file", [encoded(IMAGE, "JPEG"), png(IMAGE.astype(np.uint16))])
@pytest.mark.parametrize("size", [1, 3, 25, 60])
def test_truncated_files_have_no_kind(file, size):
    assert kinds_of(file[:size]) == []
