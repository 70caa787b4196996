"""Tests of the image size in file headers, also of damaged and malicious files, and of the server's
size limits."""

import struct

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import images

from .helpers import encoded, png_chunk, smooth_image


def chunks_of(png):
    at = 8
    chunks = []
    while at < len(png):
        length = struct.unpack(">I", png[at : at + 4])[0]
        chunks.append((png[at + 4 : at + 8], png[at + 8 : at + 8 + length]))
        at += 12 + length
    return chunks


IMAGE = smooth_image(22, 31)
PNG = encoded(IMAGE, "PNG")
JPEG = encoded(IMAGE, "JPEG")
BMP = encoded(IMAGE, "BMP")
LARGE_PNG = encoded(np.zeros((300, 515, 3), np.uint8), "PNG")
FILES = {
    "PNG": [PNG],
    "JPEG": [JPEG, encoded(IMAGE, "JPEG", progressive=True)],
    "BMP": [BMP],
}
if hasattr(tf.io, "decode_webp"):
    FILES["WEBP"] = [
        encoded(IMAGE, "WEBP"),
        encoded(IMAGE, "WEBP", lossless=True),
        encoded(IMAGE, "WEBP", lossless=True, exif=b"Exif\0\0II*\0"),
    ]


def damaged(file, rng):
    """Returns the file with random changes to its bytes or PNG chunks."""
    if file.startswith(b"\x89PNG") and rng.random() < 0.7:
        chunks = chunks_of(file)
        for _ in range(rng.integers(1, 4)):
            i, j = rng.integers(0, len(chunks), 2)
            name, content = chunks[i]
            match rng.integers(0, 4):
                case 0:
                    chunks.insert(j, chunks[i])
                case 1:
                    chunks[i], chunks[j] = chunks[j], chunks[i]
                case 2:
                    other = rng.choice([b"abCd", b"tEXt", b"IHDR", b"gAMA"])
                    chunks.insert(0, (other, rng.bytes(rng.integers(0, 20))))
                case 3 if content:
                    content = bytearray(content)
                    content[rng.integers(0, min(len(content), 30))] = rng.integers(0, 40)
                    chunks[i] = (name, bytes(content))
        return file[:8] + b"".join(png_chunk(*part) for part in chunks)
    file = bytearray(file)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, min(len(file), 900 if file[:3] == b"\xff\xd8\xff" else 60)))
        match rng.integers(0, 4):
            case 0:
                file[at] = rng.integers(0, 256)
            case 1:
                file[at] = rng.integers(0, 50)
            case 2:
                del file[at : at + rng.integers(1, 9)]
            case 3:
                file[at:at] = file[at : at + rng.integers(1, 30)]
    return bytes(file)


@tf.function(input_signature=[tf.TensorSpec((), tf.string)])
def size_of(file):
    return images.header_size(file)


@tf.function(input_signature=[tf.TensorSpec((), tf.string)])
def decoded_size(file):
    """Returns the height and width of the decoded image."""
    is_webp = tf.strings.substr(file, 0, 4) == b"RIFF"
    known = lambda: tf.io.decode_image(file, channels=3, expand_animations=False)  # noqa: E731
    if not hasattr(tf.io, "decode_webp"):
        return tf.shape(known())[:2]
    return tf.cond(
        is_webp, lambda: tf.shape(tf.io.decode_webp(file))[1:3], lambda: tf.shape(known())[:2]
    )


@pytest.mark.parametrize("kind", FILES)
def test_header_size_matches_the_decoded_image(kind):
    count = 150
    rng = np.random.default_rng(count)
    outcomes = {"rejected": 0, "not decoded": 0, "decoded": 0}
    for number in range(count):
        file = damaged(FILES[kind][number % len(FILES[kind])], rng)
        try:
            height, width = size_of(file).numpy()
        except tf.errors.InvalidArgumentError:
            height = width = 0
        # The decoded size does not matter if the header is rejected.
        if not 0 < int(height) * int(width) <= 1_000_000:
            outcomes["rejected"] += 1
            continue
        try:
            size = decoded_size(file).numpy().tolist()
        except tf.errors.OpError:
            outcomes["not decoded"] += 1
            continue
        assert size == [height, width], file
        outcomes["decoded"] += 1
    assert min(outcomes["rejected"], outcomes["decoded"]) > count // 100, outcomes


def test_png_with_late_header_is_rejected():
    large = chunks_of(LARGE_PNG)
    # Before the header, insert an unknown chunk with an image size of 1x1. The decoder skips this
    # chunk.
    other = png_chunk(b"abCd", struct.pack(">II", 1, 1) + bytes(5))
    file = PNG[:8] + other + b"".join(png_chunk(*part) for part in large)
    assert tf.io.decode_png(file).shape == (300, 515, 3)
    for window in (None, lambda size: tf.constant([0, 0, 1, 1])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not an image in a known format"):
            images.decode(tf.constant(file), window=window)


@pytest.mark.skipif(not hasattr(tf.io, "decode_webp"), reason="TensorFlow has no WebP")
def test_webp_without_chunk_header_has_no_size():
    file = encoded(IMAGE, "WEBP")
    bare = file[:12] + file[20:]  # the decoder still reads such a file
    assert size_of(bare).numpy().tolist() == [0, 0]
