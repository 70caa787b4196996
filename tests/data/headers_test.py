"""Tests of the image size in file headers, also of damaged and malicious files, and of the server's
size limits."""

import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit.data import images

IMAGE = np.asarray(
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize(
        (31, 22)
    )
)


def encoded(kind, image=IMAGE, mode="RGB", **options):
    stream = io.BytesIO()
    Image.fromarray(image).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def chunk(name, content):
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def chunks_of(png):
    at = 8
    chunks = []
    while at < len(png):
        length = struct.unpack(">I", png[at : at + 4])[0]
        chunks.append((png[at + 4 : at + 8], png[at + 8 : at + 8 + length]))
        at += 12 + length
    return chunks


PNG = encoded("PNG")
JPEG = encoded("JPEG")
BMP = encoded("BMP")
LARGE_PNG = encoded("PNG", np.zeros((300, 515, 3), np.uint8))
FILES = {
    "PNG": [PNG],
    "JPEG": [JPEG, encoded("JPEG", progressive=True)],
    "BMP": [BMP],
}
if hasattr(tf.io, "decode_webp"):
    FILES["WEBP"] = [
        encoded("WEBP"),
        encoded("WEBP", lossless=True),
        encoded("WEBP", lossless=True, exif=b"Exif\0\0II*\0"),
    ]


def damaged(file, rng):
    """Returns the file with random changes to its bytes or PNG chunks."""
    if file.startswith(b"\x89PNG") and rng.random() < 0.7:
        chunks = chunks_of(file)
        for _ in range(rng.integers(1, 4)):
            i, j = rng.integers(0, len(chunks), 2)
            name, content = chunks[i]
            match rng.integers(0, 5):
                case 0:
                    chunks.insert(j, chunks[i])
                case 1:
                    chunks[i], chunks[j] = chunks[j], chunks[i]
                case 2:
                    chunks.insert(
                        0,
                        (
                            rng.choice([b"abCd", b"tEXt", b"IHDR", b"gAMA"]),
                            rng.bytes(rng.integers(0, 20)),
                        ),
                    )
                case 3:
                    chunks[i] = (bytes(rng.permutation(list(name))), content)
                case 4 if content:
                    content = bytearray(content)
                    content[rng.integers(0, min(len(content), 30))] = rng.integers(0, 40)
                    chunks[i] = (name, bytes(content))
        return file[:8] + b"".join(chunk(*part) for part in chunks)
    file = bytearray(file)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, min(len(file), 900 if file[:3] == b"\xff\xd8\xff" else 60)))
        match rng.integers(0, 5):
            case 0 | 1:
                file[at] = rng.integers(0, 256) if rng.random() < 0.3 else rng.integers(0, 50)
            case 2:
                del file[at : at + rng.integers(1, 9)]
            case 3:
                file[at:at] = file[at : at + rng.integers(1, 30)]
            case 4:
                other = int(rng.integers(0, 60))
                file[at : at + 4] = file[other : other + 4]
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
@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_header_size_matches_the_decoded_image(kind, count):
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
    other = chunk(b"abCd", struct.pack(">II", 1, 1) + bytes(5))
    file = PNG[:8] + other + b"".join(chunk(*part) for part in large)
    assert tf.io.decode_png(file).shape == (300, 515, 3)
    for decode in (
        images.decode,
        lambda file: images.decode(file, window=lambda size: tf.constant([0, 0, 1, 1])),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not an image in a known format"):
            decode(tf.constant(file))


@pytest.mark.skipif(not hasattr(tf.io, "decode_webp"), reason="TensorFlow has no WebP")
def test_webp_without_chunk_header_has_no_size():
    file = encoded("WEBP")
    bare = file[:12] + file[20:]  # the decoder still reads such a file
    assert size_of(bare).numpy().tolist() == [0, 0]
