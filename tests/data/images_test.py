"""Tests of image decoding: formats, header sizes, windows, orientation and errors."""

import functools
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.data import images

from .helpers import encoded, smooth_image

SMOOTH = smooth_image(22, 31)


@functools.cache
def in_graph(function):
    """Compiles a function of the bytes of a file, as the pipeline does."""
    return tf.function(function, [tf.TensorSpec((), tf.string)], autograph=False)


def pillow(file, mode="RGB"):
    """Returns an image as Pillow decodes it: uint8 `(22, 31, channels)`."""
    return np.asarray(Image.open(io.BytesIO(file)).convert(mode))


def animation(file_format, **options):
    """Returns a file of three frames."""
    frames = [Image.fromarray(np.roll(SMOOTH, shift, 0)) for shift in range(3)]
    stream = io.BytesIO()
    frames[0].save(stream, file_format, save_all=True, append_images=frames[1:], **options)
    return stream.getvalue()


KINDS = [
    ("PNG", "RGB"),
    ("PNG", "RGBA"),
    ("PNG", "L"),
    ("PNG", "LA"),
    ("PNG", "P"),
    ("GIF", "P"),
    ("BMP", "RGB"),
    ("BMP", "P"),
]
if hasattr(tf.io, "decode_webp"):
    KINDS += [("WEBP", "RGB"), ("WEBP", "RGBA")]


@pytest.mark.parametrize(("kind", "mode"), KINDS, ids=lambda value: value)
def test_lossless_files_decode_as_in_pillow(kind, mode):
    options = {"lossless": True} if kind == "WEBP" else {}
    file = encoded(SMOOTH, kind, mode, **options)
    expected = pillow(file, "RGBA" if "A" in mode else "RGB")[..., :3]
    np.testing.assert_array_equal(in_graph(images.decode)(file), expected)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("trailing", [b"", b"maker's notes"], ids=["", "trailing bytes"])
def test_jpeg_decodes_as_in_pillow(mode, trailing):
    file = encoded(SMOOTH, "JPEG", mode, quality=75) + trailing
    expected = pillow(file)
    as_pillow = images.decode(tf.constant(file), library="torchvision")
    np.testing.assert_array_equal(as_pillow, expected)
    # vit_jax decodes in another way; swapped channels would differ far more.
    difference = in_graph(images.decode)(file).numpy() - expected.astype(int)
    assert 0 < np.abs(difference).mean() < 3


def test_gif_decodes_to_its_first_frame():
    file = animation("GIF", comment=b"x" * 700, loop=0)
    np.testing.assert_array_equal(in_graph(images.decode)(file), pillow(file))
    assert in_graph(images.header_size)(file).numpy().tolist() == [22, 31]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_window_matches_crop_of_whole_image(kind):
    file = encoded(SMOOTH, kind, quality=90)
    window = lambda size: tf.concat([[3, 5], size - 10], 0)  # noqa: E731
    part = in_graph(functools.partial(images.decode, window=window))(file)
    whole = in_graph(images.decode)(file)[3:15, 5:26]
    # At the window's edges, JPEG chroma upsampling lacks the neighboring colors.
    edge = 1 if kind == "JPEG" else 0
    np.testing.assert_array_equal(part[:, edge : 21 - edge], whole[:, edge : 21 - edge])


DECODE_UPRIGHT = functools.partial(images.decode, exif=True)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("byte_order", "<>")
def test_exif_orientation_is_applied_on_request(orientation, byte_order):
    exif = Image.Exif()
    exif.endian = byte_order
    exif[0x0112] = orientation
    file = encoded(SMOOTH, "JPEG", exif=exif.tobytes(), quality=95)
    stored = images.decode(tf.constant(file)).numpy()
    assert stored.shape == SMOOTH.shape
    photo = Image.fromarray(stored)
    photo.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(photo))
    np.testing.assert_array_equal(in_graph(DECODE_UPRIGHT)(file), expected)


JPEG = encoded(SMOOTH, "JPEG")
PNG = encoded(SMOOTH, "PNG")
BROKEN = {
    "empty": b"",
    "text": b"this is not an image",
    "truncated jpeg": JPEG[:-40],
    "truncated png": PNG[:-40],
    "only a jpeg header": JPEG[:30],
    "huge png": PNG[:16] + b"\0\1\0\0\0\1\0\0" + PNG[24:],
}


@pytest.mark.parametrize("file", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("window", [None, lambda size: tf.constant([0, 0, 1, 1])])
def test_rejects_broken_images(file, window):
    with pytest.raises(tf.errors.InvalidArgumentError):
        images.decode(tf.constant(file), window=window)


BMP = encoded(SMOOTH, "BMP", "P")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (BMP[:30] + b"\1" + BMP[31:], "a compressed BMP file"),
        (animation("WEBP"), "not an image in a known format"),
    ],
    ids=["compressed BMP", "animated WebP"],
)
def test_rejects_unsupported_formats(file, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        images.decode(tf.constant(file))


def test_rejects_too_large_images_before_decoding():
    megapixels = 22 * 31 / 1e6
    for limit in (megapixels, np.inf):
        images.decode(tf.constant(PNG), max_megapixels=limit)
    with pytest.raises(tf.errors.InvalidArgumentError, match="megapixels"):
        images.decode(tf.constant(PNG), max_megapixels=megapixels - 1e-6)
