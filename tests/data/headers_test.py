"""Tests of the image size in file headers, also of damaged and malicious files."""

import collections
import contextlib
import struct

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import images

from .helpers import encoded, png_chunk, smooth_image


def files_of(image):
    """Returns a dict from formats to files of an image."""
    files = {
        "PNG": [encoded(image, "PNG")],
        "JPEG": [encoded(image, "JPEG"), encoded(image, "JPEG", progressive=True)],
        "BMP": [encoded(image, "BMP")],
    }
    if hasattr(tf.io, "decode_webp"):
        files["WEBP"] = [
            encoded(image, "WEBP"),
            encoded(image, "WEBP", lossless=True),
            encoded(image, "WEBP", lossless=True, exif=b"Exif\0\0II*\0"),
        ]
    return files


SMALL = files_of(smooth_image(22, 31))
LARGE = files_of(np.zeros((300, 515, 3), np.uint8))


def damaged(file, rng):
    """Returns a file with a random change to its header."""
    header_length = 900 if file.startswith(b"\xff\xd8\xff") else 60  # JPEG files have tables
    start = int(rng.integers(0, min(len(file), header_length)))
    before, after = file[:start], file[start:]
    match rng.integers(0, 4):
        case 0:
            return before + rng.bytes(1) + after[1:]
        case 1:
            return before + bytes([rng.integers(0, 50)]) + after[1:]
        case 2:
            return before + after[rng.integers(1, 9) :]
        case 3:
            return before + after[: rng.integers(1, 30)] + after


def size_of(file):
    return images.header_size(tf.constant(file)).numpy().tolist()


def decoded_size(file):
    """Returns the height and width of the decoded image."""
    if file.startswith(b"RIFF"):
        return tf.io.decode_webp(file).shape[1:3].as_list()
    return tf.io.decode_image(file, channels=3, expand_animations=False).shape[:2].as_list()


@pytest.mark.parametrize("kind", LARGE)
def test_header_size_of_intact_files(kind):
    assert [size_of(file) for file in LARGE[kind]] == [[300, 515]] * len(LARGE[kind])


# A damaged PNG is never decoded, because its chunks have checksums.
@pytest.mark.parametrize("kind", [kind for kind in SMALL if kind != "PNG"])
def test_header_size_of_damaged_files_matches_the_decoded_image(kind):
    count = 150
    rng = np.random.default_rng(count)
    outcomes = collections.Counter()
    for number in range(count):
        file = SMALL[kind][number % len(SMALL[kind])]
        for _ in range(rng.integers(1, 4)):
            file = damaged(file, rng)
        try:
            height, width = size_of(file)
        except tf.errors.InvalidArgumentError:
            height = width = 0
        # The decoded size does not matter if the header is rejected.
        if not 0 < height * width <= 1_000_000:
            outcomes["rejected"] += 1
            continue
        with contextlib.suppress(tf.errors.OpError):
            assert decoded_size(file) == [height, width], file
            outcomes["decoded"] += 1
    assert min(outcomes["rejected"], outcomes["decoded"]) > count // 100, outcomes


def test_png_with_late_header_is_rejected():
    # Before the header, insert an unknown chunk with an image size of 1x1. The decoder skips this
    # chunk.
    unknown = png_chunk(b"abCd", struct.pack(">II", 1, 1) + bytes(5))
    png = LARGE["PNG"][0]
    file = png[:8] + unknown + png[8:]
    assert tf.io.decode_png(file).shape == (300, 515, 3)
    for window in (None, lambda size: tf.constant([0, 0, 1, 1])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not an image in a known format"):
            images.decode(tf.constant(file), window=window)


@pytest.mark.skipif(not hasattr(tf.io, "decode_webp"), reason="TensorFlow has no WebP")
def test_webp_without_chunk_header_has_no_size():
    file = SMALL["WEBP"][0]
    bare = file[:12] + file[20:]  # the decoder still reads such a file
    assert size_of(bare) == [0, 0]
