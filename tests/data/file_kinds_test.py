import io

import numpy as np
import pytest
from PIL import Image

from keras_vit.data.file_kinds import kinds_of


def _file(mode, ending, largest=255):
    if mode == "I;16":
        image = Image.fromarray(np.full((4, 6), largest, np.uint16))
    else:
        image = Image.new("RGB", (6, 4), (200, 20, 20)).convert(mode)
    file = io.BytesIO()
    image.save(file, ending)
    return file.getvalue()


@pytest.mark.parametrize(
    ("kinds", "arguments"),
    [
        ([], ("RGB", "JPEG")),
        ([], ("RGB", "PNG")),
        ([], ("RGB", "BMP")),
        ([], ("RGB", "WEBP")),
        (["gray"], ("L", "JPEG")),
        (["gray"], ("LA", "PNG")),
        (["palette"], ("P", "PNG")),
        (["palette"], ("P", "GIF")),
        (["gray", "12-bit"], ("I;16", "PNG", 4095)),
        (["gray"], ("I;16", "PNG", 4096)),
    ],
)
def test_kinds_of_files(kinds, arguments):
    assert kinds_of(_file(*arguments)) == kinds


@pytest.mark.parametrize("ending", ["JPEG", "PNG", "BMP"])
def test_truncated_files_have_kinds(ending):
    encoded = _file("I;16" if ending == "PNG" else "L", ending)
    for size in (1, 3, 9, 25, 60):
        kinds_of(encoded[:size])
