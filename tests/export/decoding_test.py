"""Tests that `Decoder` decodes images as in evaluation and rejects narrow images."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import Preprocessing, VisionTransformer, data, evaluation
from keras_vit.export.decoding import Decoder

from ..shared import SIZES
from .conftest import FILES, image_file


def write_folder(path, files):
    """Writes image files of one class to both splits of a folder, and returns its name."""
    for split in ("train", "test"):
        folder = path / split / "thing"
        folder.mkdir(parents=True)
        for number, file in enumerate(files):
            (folder / f"{number}.jpg").write_bytes(file)
    return str(path)


def assert_decodes_as_in_evaluation(files, tmp_path, **options):
    """Compares the images of a `Decoder` with those of a folder's input pipeline."""
    fields = {"name": "folder", "path": write_folder(tmp_path, files), "image_size": 6, **options}
    inputs = data.from_config(fields, batch_size=len(files), seed=0)
    ((images, _, weights),) = inputs.eval_batches()
    assert weights.numpy().tolist() == [1] * len(files)
    decoded = Decoder(inputs.image_shape, inputs.model_preprocessing())(tf.constant(files))
    # Allow one rounding error, because graphs replace division by a constant with multiplication.
    np.testing.assert_allclose(decoded, images, rtol=0, atol=1.2e-7)


@pytest.mark.parametrize(
    "options",
    [
        {"augreg": "light1"},
        {"eval_crop": "resize_crop", "resize_size": 9, "rounding": "uint8"},
        {"eval_crop": "resize_small_crop", "resize_size": 9},
    ],
    ids=str,
)
def test_files_decode_as_in_evaluation(options, tmp_path):
    assert_decodes_as_in_evaluation(FILES, tmp_path, **options)


@pytest.mark.parametrize(("channels", "bit_depth"), [(4, 8), (1, 16)])
def test_files_with_other_channels_decode_as_in_evaluation(channels, bit_depth, tmp_path):
    pixels = np.random.default_rng(1).integers(0, 2**bit_depth, (9, 14, channels))
    file = tf.io.encode_png(pixels.astype(f"uint{bit_depth}")).numpy()
    assert_decodes_as_in_evaluation([file], tmp_path, channels=channels, bit_depth=bit_depth)


@pytest.mark.parametrize("library", ["vit_jax", "torchvision", "transformers"])
def test_evaluation_uses_the_library_of_the_model(library, tmp_path):
    preprocessing = Preprocessing(
        resize="shorter_side", crop_fraction=0.9, interpolation="bicubic", library=library
    )
    sizes = {**SIZES, "patch_size": 5, "classes": 1}
    model = VisionTransformer(**sizes, input_shape=(10, 10, 3), preprocessing=preprocessing)
    folder = write_folder(tmp_path, FILES)
    inputs = evaluation.load_inputs(model, "folder", folder, ("test",), batch_size=len(FILES))
    ((images, *_),) = inputs.eval_batches()
    assert inputs.model_preprocessing() == dataclasses.replace(preprocessing, crop_fraction=10 / 11)
    decoded = Decoder((10, 10, 3), preprocessing)(tf.constant(FILES))
    np.testing.assert_allclose(decoded, images, rtol=0, atol=1e-6)


def test_shorter_side_resizing_covers_a_non_square_input():
    preprocessing = Preprocessing([0.0] * 3, [1.0] * 3, "shorter_side", 0.5)
    file = image_file(16, 64)
    decoded = Decoder((4, 6, 3), preprocessing)(tf.constant([file]))
    image = tf.cast(tf.io.decode_png(file), tf.float32)
    # The crop fraction 0.5 requires at least (8, 12) pixels, so the image is resized to (8, 32).
    means = tf.reshape(image, (8, 2, 32, 2, 3)).numpy().mean((1, 3))
    np.testing.assert_allclose(decoded[0], means[2:6, 13:19], rtol=1e-5)


def test_channels_are_normalized_separately():
    preprocessing = Preprocessing([0, 10, 20.0], [1.0, 2.0, 4.0])
    white = tf.io.encode_png(tf.fill((5, 7, 3), tf.constant(250, tf.uint8)))
    decoded = Decoder((2, 3, 3), preprocessing)(white[None])
    np.testing.assert_array_equal(decoded, np.broadcast_to([250, 120, 57.5], (1, 2, 3, 3)))


def test_rejects_narrow_images():
    preprocessing = Preprocessing([0.0] * 3, [1.0] * 3, "shorter_side")
    strip = tf.io.encode_png(tf.zeros((1, 101, 3), tf.uint8))
    with pytest.raises(tf.errors.InvalidArgumentError, match="100 times as long as wide"):
        Decoder((4, 4, 3), preprocessing)(strip[None])


@pytest.mark.parametrize(
    ("dtype", "white", "file_dtype", "size"),
    [
        ("uint8", 16, np.uint8, 5),
        ("uint8", 1, np.uint8, 0),
        ("uint16", 10_000, np.uint16, 5),
        ("float32", 1.0, np.uint16, 0),
    ],
)
def test_files_of_arrays_decode_like_the_arrays(dtype, white, file_dtype, size):
    """The files of uint8 arrays have 8 bits per channel. The files of other arrays have 16 bits."""
    levels = min(white, 16)
    values = np.round(levels * np.random.default_rng(0).uniform(0, 1, (3, 5, 5, 3))) / levels
    arrays = data.arrays((values * white).astype(dtype), [0, 0, 0], ["a"], max_value=white)
    options = data.Options(image_size=size).resolve(arrays)
    ((images, *_),) = data.eval_batches(arrays, batch_size=3, image_size=size)
    file_white = np.iinfo(file_dtype).max
    pixels = np.round(values * file_white).astype(file_dtype)
    files = tf.stack([tf.io.encode_png(image) for image in pixels])
    decoder = Decoder((5, 5, 3), options.model_preprocessing(arrays))
    # Files are rounded by up to half a gray level, which is 1 / file_white in the range [-1, 1].
    np.testing.assert_allclose(decoder(files), images, rtol=0, atol=1.001 / file_white)
