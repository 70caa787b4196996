"""Tests of images with 1, 2, 4 or 12 channels, or with 16 bits per value."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import images, randaugment

from .helpers import encoded, png, smooth_image, source_of, write_examples

RNG = np.random.default_rng(7)
# A source of two images with four channels.
FOUR = data.arrays(np.zeros((2, 4, 4, 4), np.uint8), [0, 0], ["a"])


def batches_of(source, **options):
    """Returns the images of the only evaluation batch and of the first training batch."""
    options = {"flip": "off", **options}
    n = source.num_examples
    ((evaluated, _, weights),) = data.eval_batches(source, batch_size=n, **options)
    assert weights.numpy().tolist() == [1] * n
    trained, *_ = next(iter(data.train_batches(source, batch_size=n, seed=0, **options)))
    assert trained.shape == evaluated.shape
    return evaluated.numpy(), trained.numpy()


@pytest.mark.parametrize(
    ("channels", "dtype", "white"), [(2, "uint8", 255), (1, "uint16", 65535), (12, "float32", 1.0)]
)
def test_arrays_are_scaled_to_minus_one_to_one(channels, dtype, white):
    values = (RNG.random((3, 4, 5, channels)) * white).astype(dtype)
    max_value = white if dtype == "float32" else 0
    source = data.arrays(values, [0] * 3, ["a"], max_value=max_value)
    evaluated, trained = batches_of(source, channels=channels)
    expected = values.astype(np.float64) / (white / 2) - 1
    np.testing.assert_allclose(evaluated, expected, atol=1e-6)
    # The training batch has the same images in another order.
    np.testing.assert_allclose(np.sort(trained.ravel()), np.sort(expected.ravel()), atol=1e-6)


def test_each_channel_has_its_own_mean_and_std():
    values = RNG.integers(0, 256, (2, 4, 5, 4), dtype=np.uint8)
    mean = (10.0, 20.0, 30.0, 40.0)
    std = (1.0, 2.0, 4.0, 8.0)
    evaluated, _ = batches_of(data.arrays(values, [0, 0], ["a"]), channels=4, mean=mean, std=std)
    np.testing.assert_array_equal(evaluated, (values.astype(np.float32) - mean) / np.float32(std))


def test_augmentation_processes_channels_equally():
    """Compares the last channel with RGB images made of three copies of that channel."""
    values = RNG.integers(0, 256, (3, 16, 20, 4), dtype=np.uint8)
    options = {
        "image_size": 8,
        "train_crop": "inception",
        "eval_crop": "resize_small_crop",
        "resize_size": 10,
        "flip": "on",
        "shift": 1,
        "cutmix_alpha": 1.0,
    }
    source = source_of([png(image) for image in values])
    rgb_source = source_of([png(np.repeat(image[..., -1:], 3, -1)) for image in values])
    batches = batches_of(source, **options, channels=4)
    for batch, rgb_batch in zip(batches, batches_of(rgb_source, **options)):
        np.testing.assert_array_equal(batch[..., -1], rgb_batch[..., 0])


@pytest.mark.parametrize("channels", [1, 4])
def test_bit_depth_16_preserves_16_bit_png_values(channels):
    values = RNG.integers(0, 65536, (5, 6, channels), dtype=np.uint16)
    deep = images.decode(tf.constant(png(values)), channels=channels, bit_depth=16)
    assert deep.dtype == tf.float32
    np.testing.assert_array_equal(deep, values)
    # 65535 / 257 is 255.
    shallow = images.decode(tf.constant(png(values)), channels=channels)
    assert shallow.dtype == tf.uint8 and np.abs(shallow.numpy() - values / 257.0).max() <= 1
    bytes_ = RNG.integers(0, 256, (5, 6, channels), dtype=np.uint8)
    widened = images.decode(tf.constant(png(bytes_)), channels=channels, bit_depth=16)
    np.testing.assert_array_equal(widened, bytes_ * 257.0)


@pytest.mark.full
def test_randaugment_of_16_bit_values_stays_in_range():
    source = source_of([png(RNG.integers(0, 65536, (5, 6, 1), dtype=np.uint16))])
    _, augmented = batches_of(source, channels=1, bit_depth=16, image_size=6, augreg="light2")
    assert -1 <= augmented.min() < augmented.max() <= 1


SMOOTH = smooth_image(32, 40)
JPEG = tf.io.encode_jpeg(SMOOTH, quality=100).numpy()
CMYK_JPEG = encoded(SMOOTH, "JPEG", "CMYK", quality=100, subsampling=0)


@pytest.mark.parametrize(
    "file",
    [png(SMOOTH), encoded(SMOOTH, "BMP"), JPEG, CMYK_JPEG, CMYK_JPEG + b"notes"],
    ids=["PNG", "BMP", "JPEG", "CMYK", "trailing bytes"],
)
def test_color_files_decode_to_gray(file):
    luma = SMOOTH @ np.array([0.299, 0.587, 0.114])
    gray = images.decode(tf.constant(file), channels=1).numpy()
    assert gray.shape == (32, 40, 1) and np.abs(gray[..., 0] - luma).mean() < 1.5


@pytest.mark.parametrize("file", [JPEG, CMYK_JPEG], ids=["JPEG", "CMYK"])
def test_window_of_a_color_file_decodes_to_gray(file):
    # The window is aligned with the blocks of 8x8 pixels.
    window = lambda size: tf.constant([8, 8, 16, 16])  # noqa: E731
    part = images.decode(tf.constant(file), channels=1, window=window)
    whole = images.decode(tf.constant(file), channels=1)
    np.testing.assert_array_equal(part, whole[8:24, 8:24])


@pytest.mark.parametrize("file", [png(SMOOTH), JPEG], ids=["PNG", "JPEG"])
def test_rejects_files_with_wrong_channel_count(file):
    with pytest.raises(tf.errors.InvalidArgumentError, match="not an image with 4 channels"):
        images.decode(tf.constant(file), channels=4)


def serialized(array):
    return tf.io.serialize_tensor(array).numpy()


def png_of_band(band):
    return png(band[..., None])


# The names of features that store one band each.
BANDS = ["blue", "red"]
RAW = {"image_dtype": "uint16"}


@pytest.mark.parametrize(
    ("encode", "features", "fields"),
    [
        (np.ndarray.tobytes, ["image"], {**RAW, "image_shape": (4, 5, 2)}),
        (serialized, ["image"], RAW),
        (np.ndarray.tobytes, BANDS, {**RAW, "image_shape": (4, 5)}),
        (png_of_band, BANDS, {"bit_depth": 16}),
    ],
    ids=["raw", "tensor", "raw bands", "png bands"],
)
def test_reads_values_and_bands_from_records(encode, features, fields, tmp_path):
    values = RNG.integers(0, 60_000, (3, 4, 5, 2), dtype=np.uint16)
    examples = []
    for value in values:
        parts = [value] if features == ["image"] else [value[..., 0], value[..., 1]]
        examples.append({"label": 0, **dict(zip(features, map(encode, parts)))})
    write_examples(tmp_path / "r", examples)
    fields = {
        "name": "tfrecords",
        "path": str(tmp_path),
        "train_split": "r",
        "test_split": "r",
        "classes": 1,
        "image_key": ",".join(features),
        "label_key": "label",
        "channels": 2,
        "image_size": 5,
        **fields,
    }
    inputs = data.from_config(fields, batch_size=3, seed=0)
    assert inputs.image_shape == (5, 5, 2) and inputs.model_preprocessing().mean == (32767.5,) * 2
    ((evaluated, _, weights),) = inputs.eval_batches()
    assert weights.numpy().tolist() == [1] * 3
    expected = tf.image.resize(values.astype(np.float32), (5, 5)) / 32767.5 - 1
    np.testing.assert_allclose(evaluated, expected, atol=1e-6)
    assert data.verify(inputs.test, **inputs.options)["bad"] == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"image_dtype": "color"}, "`image_dtype` must be"),
        ({"image_dtype": "string"}, "`image_dtype` must be"),
        ({"image_dtype": "uint16", "image_shape": (4,)}, "`image_shape` must be"),
        ({"image_shape": (4, 5, 12)}, "`image_dtype` must be set"),
        ({"image_dtype": "float32"}, "`max_value`, the value of a white"),
        ({"image_dtype": "float32", "max_value": np.inf}, "must be finite"),
    ],
)
def test_rejects_invalid_options_for_raw_records(wrong, message, tmp_path):
    write_examples(tmp_path / "r", [{"image": bytes(80), "label": 1}])
    with pytest.raises(ValueError, match=message):
        data.tfrecords(tmp_path / "r", ["a", "b"], image_key="image", label_key="label", **wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`channels` must be 4"),
        ({"channels": 4, "augreg": "medium1"}, "`augreg` must be 'none'.*layers=2"),
        ({"channels": 4, "mean": (1.0, 2.0)}, "`mean` must be"),
        ({"channels": 4, "std": (1.0, 2.0, 0.0, 1.0)}, "`std` must be"),
        ({"channels": 0}, "`channels` must be 1 or more"),
        ({"channels": 4, "bit_depth": 16}, "`bit_depth` must be 8"),
    ],
)
def test_rejects_options_unsupported_for_channels(options, message):
    with pytest.raises(ValueError, match=message):
        data.train_batches(FOUR, batch_size=2, seed=0, **options)


def test_randaugment_of_gray_matches_three_equal_channels():
    gray = RNG.integers(30, 200, (16, 13, 1), dtype=np.uint8)
    rgb = np.repeat(gray, 3, -1)
    for name, operation in randaugment.operations(7).items():
        actual = operation(tf.constant(gray), 1.0, 0.4, 0.6).numpy()
        expected = operation(tf.constant(rgb), 1.0, 0.4, 0.6).numpy()
        assert actual.shape == gray.shape, name
        # Converting three equal channels to gray rounds down, because the weights sum to 0.9999.
        tolerance = {"Color": 2, "Contrast": 1}.get(name, 0)
        assert np.abs(actual.astype(int) - expected[..., :1]).max() <= tolerance, name
