"""Tests of training without a crop, and of the default crops of small images."""

import numpy as np
import pytest

from keras_vit import data

from .helpers import png, source_of


def pipeline_without_crop(heights):
    """Returns a pipeline of files of these heights, which are 28 pixels wide. The pixels of a file
    have one value: 0, 10, 20 and so on."""
    files = [
        png(np.full((height, 28, 3), 10 * number, np.uint8))
        for number, height in enumerate(heights)
    ]
    options = {"image_size": 28, "train_crop": "none", "flip": "off"}
    source = source_of(files)
    return data.InputPipeline(source, source, options, batch_size=4, seed=0, max_bad_share=0.01)


def test_files_of_one_size_need_no_crop():
    batches = pipeline_without_crop([28] * 4).train_batches()
    images, _, weights = next(iter(batches))
    assert images.shape == (4, 28, 28, 3) and weights.numpy().all()
    values = (images.numpy() + 1) * 127.5
    np.testing.assert_allclose(np.sort(values[:, 0, 0, 0]), [0, 10, 20, 30], atol=1e-4)


def test_files_of_mixed_sizes_need_a_crop():
    inputs = pipeline_without_crop([28, 28, 20, 20])
    bad = inputs.bad_examples("train", warn=lambda line: None)
    assert len(list(inputs.train_batches().take(1))) == 1
    with pytest.raises(ValueError, match="must have 28x28 .*, but have:.*20 28"):
        bad.check(0, bad.update(0))


@pytest.mark.parametrize("crop", ["none", "auto"])
def test_files_require_image_size(crop):
    with pytest.raises(ValueError, match="image_size=0, train_crop="):
        data.Options(train_crop=crop, eval_crop=crop).resolve(source_of([b""]))


def test_arrays_of_one_size_keep_it():
    source = source_of(np.zeros((2, 6, 8, 3), np.uint8))
    assert data.Options().resolve(source).image_shape(source) == (6, 8, 3)


OWN_CROPS = {"train_crop": "none", "eval_crop": "none"}  # as sources of arrays have


@pytest.mark.parametrize(
    ("source_options", "fields", "crop", "shift"),
    [
        ({}, {"image_size": 28}, "resize", 3),
        ({}, {"image_size": 63, "shift": 1}, "resize", 1),
        ({}, {"image_size": 64}, "inception", 0),
        ({}, {"image_size": 28, "train_crop": "inception"}, "inception", 0),
        ({}, {"image_size": 28, "train_crop": "resize"}, "resize", 0),
        ({"flip": "off"}, {"image_size": 28}, "resize", 3),
        ({"train_crop": "resize"}, {"image_size": 28}, "resize", 0),
        (OWN_CROPS, {"image_size": 28}, "resize", 0),
    ],
)
def test_small_images_are_shifted_by_default(source_options, fields, crop, shift):
    source = source_of([b""], options=source_options)
    options = data.Options(**fields).resolve(source)
    assert (options.train_crop, options.shift, options.eval_crop) == (crop, shift, "resize")
