"""Tests of image decoding: formats, header sizes, windows, orientation and errors."""

import contextlib
import functools
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.data import images

RNG = np.random.default_rng(0)
SMOOTH = np.asarray(
    Image.fromarray(RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize((31, 22), Image.BICUBIC)
)


def encoded(kind, mode="RGB", image=SMOOTH, **kwargs):
    stream = io.BytesIO()
    Image.fromarray(image).convert(mode).save(stream, kind, **kwargs)
    return stream.getvalue()


def in_dataset(function, value):
    """Returns `function(value)`, computed by `tf.data` as in the real pipeline."""
    values, results = _pipeline(function)
    values.append(value)
    return next(results)


@functools.cache
def _pipeline(function):
    """Returns a list of inputs and an iterator over results. The cache avoids building the iterator
    again."""
    values = []
    options = tf.data.Options()
    options.autotune.enabled = False  # do not read ahead
    take = lambda _: tf.ensure_shape(tf.numpy_function(values.pop, [], tf.string), ())  # noqa: E731
    return values, iter(
        tf.data.Dataset.from_tensors(0).repeat().map(take).map(function).with_options(options)
    )


def decode_upright(data):
    return images.decode(data, exif=True)


def decode_one_pixel(data):
    return images.decode(data, window=lambda size: tf.constant([0, 0, 1, 1]))


KINDS = [
    ("PNG", "RGB"),
    ("PNG", "RGBA"),
    ("PNG", "L"),
    ("PNG", "LA"),
    ("PNG", "P"),
    ("GIF", "P"),
    ("BMP", "RGB"),
    ("BMP", "L"),
    ("BMP", "P"),
]
if hasattr(tf.io, "decode_webp"):
    KINDS += [("WEBP", "RGB"), ("WEBP", "RGBA")]


@pytest.mark.parametrize(("kind", "mode"), KINDS, ids=lambda value: value)
def test_lossless_files_decode_as_in_pillow(kind, mode):
    data = encoded(kind, mode, **({"lossless": True} if kind == "WEBP" else {}))
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGBA" if "A" in mode else "RGB"))[
        ..., :3
    ]
    np.testing.assert_array_equal(in_dataset(images.decode, data), expected)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpeg_decodes_to_three_channels(mode):
    data = encoded("JPEG", mode, quality=95, subsampling=0)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    actual = in_dataset(images.decode, data)
    # TensorFlow and Pillow use different builds of libjpeg; swapped channels would differ far more.
    assert actual.shape == expected.shape and np.abs(actual.numpy() - expected).mean() < 3


@pytest.mark.parametrize("library", ["torchvision", "transformers"])
def test_other_libraries_decode_jpeg_as_pillow(library):
    decode = functools.partial(images.decode, library=library)
    decode = tf.function(decode, input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
    for mode in ("RGB", "L", "CMYK"):
        for more in (b"", b"maker's notes"):
            data = encoded("JPEG", mode, quality=75) + more
            np.testing.assert_array_equal(decode(data), Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.any(in_dataset(images.decode, data) != decode(data))


def test_compressed_bmp_is_rejected():
    data = bytearray(encoded("BMP", "P"))
    data[30] = 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="a compressed BMP file"):
        images.decode(tf.constant(bytes(data)))


def test_animated_webp_is_rejected():
    frames = [Image.fromarray(np.roll(SMOOTH, shift, 0)) for shift in range(3)]
    stream = io.BytesIO()
    frames[0].save(stream, "WEBP", save_all=True, append_images=frames[1:])
    assert in_dataset(images.header_size, stream.getvalue()).numpy().tolist() == [0, 0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not an image in a known format"):
        images.decode(tf.constant(stream.getvalue()))


@pytest.mark.parametrize("frames", [1, 3])
def test_gif_decodes_to_its_first_frame(frames):
    pictures = [Image.fromarray(np.roll(SMOOTH, shift, 0)).convert("P") for shift in range(frames)]
    stream = io.BytesIO()
    more = {"save_all": True, "append_images": pictures[1:], "loop": 0} if frames > 1 else {}
    pictures[0].save(stream, "GIF", comment=b"x" * 700, **more)
    data = stream.getvalue()
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(in_dataset(images.decode, data), expected)
    assert in_dataset(images.header_size, data).numpy().tolist() == [22, 31]


def test_truncated_gif_decodes_or_raises():
    data = encoded("GIF", "P")
    decode = tf.function(images.decode, input_signature=[tf.TensorSpec((), tf.string)])
    for length in [4, 9, 12, 14, 100, *range(770, len(data), 40)]:
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            assert decode(data[:length]).shape[2] == 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_header_size_of_each_format(kind):
    assert in_dataset(images.header_size, encoded(kind)).numpy().tolist() == [22, 31]


@pytest.mark.parametrize(
    "options", [{}, {"lossless": True}, {"lossless": True, "exif": b"Exif\0\0II*\0"}]
)
def test_header_size_of_each_webp_variant(options):
    wide = np.zeros((300, 515, 3), np.uint8)
    assert in_dataset(
        images.header_size, encoded("WEBP", image=wide, **options)
    ).numpy().tolist() == [300, 515]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_window_matches_crop_of_whole_image(kind):
    data = encoded(kind, quality=90)
    window = in_dataset(
        lambda data: images.decode(data, window=lambda size: tf.concat([[3, 5], size - 10], 0)),
        data,
    )
    whole = in_dataset(images.decode, data)[3:15, 5:26]
    # At the window's edges, JPEG chroma upsampling lacks the neighboring colors.
    edge = 1 if kind == "JPEG" else 0
    np.testing.assert_array_equal(window[:, edge : 21 - edge], whole[:, edge : 21 - edge])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["big", "little"])
def test_exif_orientation_is_applied_on_request(orientation, order):
    exif = Image.Exif()
    exif.endian = ">" if order == "big" else "<"
    exif[0x0112] = orientation
    data = encoded("JPEG", exif=exif.tobytes(), quality=95)
    plain = images.decode(tf.constant(data)).numpy()
    assert plain.shape == SMOOTH.shape
    turned = Image.fromarray(plain)
    turned.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(turned))
    np.testing.assert_array_equal(in_dataset(decode_upright, data), expected)


BROKEN = {
    "empty": b"",
    "one byte": b"\xff",
    "text": b"this is not an image",
    "truncated jpeg": encoded("JPEG")[:-40],
    "truncated png": encoded("PNG")[:-40],
    "only a jpeg header": encoded("JPEG")[:30],
    "only magic": b"\xff\xd8\xff",
    "huge png": encoded("PNG")[:16] + b"\x00\x01\x00\x00\x00\x01\x00\x00" + encoded("PNG")[24:],
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("windowed", [True, False], ids=["windowed", "whole"])
def test_rejects_broken_images(data, windowed):
    with pytest.raises(tf.errors.InvalidArgumentError):
        in_dataset(decode_one_pixel if windowed else images.decode, data)


def test_rejects_too_large_images_before_decoding():
    with pytest.raises(tf.errors.InvalidArgumentError, match="megapixels"):
        in_dataset(
            lambda data: images.decode(data, max_megapixels=22 * 31 / 1e6 - 1e-6), encoded("PNG")
        )
    in_dataset(lambda data: images.decode(data, max_megapixels=22 * 31 / 1e6), encoded("PNG"))


def test_jpeg_with_trailing_bytes_decodes():
    data = encoded("JPEG")
    np.testing.assert_array_equal(
        images.decode(tf.constant(data + b"maker's notes")), images.decode(tf.constant(data))
    )
