"""Tests of training without a crop, and of the default crops of small images."""

import dataclasses

import numpy as np
import pytest

from keras_vit import data

from .helpers import png


def write_pngs(folder, heights):
    """Writes one class of gray PNGs of these heights, which are 28 pixels wide."""
    (folder / "a").mkdir(parents=True)
    for number, height in enumerate(heights):
        image = np.full((height, 28, 3), 10 * number, np.uint8)
        (folder / "a" / f"{number}.png").write_bytes(png(image))


def pipeline(folder, **fields):
    fields = {"name": "folder", "path": str(folder), "test_share": 0.25, "image_size": 28, **fields}
    return data.from_config(fields, batch_size=4, seed=0)


def test_files_of_one_size_need_no_crop(tmp_path):
    write_pngs(tmp_path, [28] * 8)
    inputs = pipeline(tmp_path, train_crop="none", flip="off")
    images, _, weights = next(iter(inputs.train_batches()))
    assert images.shape == (4, 28, 28, 3) and weights.numpy().all()
    levels = {round(float(image[0, 0, 0] + 1) * 127.5) for image in images}
    assert levels <= set(range(0, 80, 10)) and len(levels) == 4  # the pixels are unchanged


def test_files_of_mixed_sizes_need_a_crop(tmp_path):
    write_pngs(tmp_path, [28, 28, 20, 28, 20, 28, 28, 20])
    inputs = pipeline(tmp_path, train_crop="none")
    bad = inputs.bad_examples("train", warn=lambda line: None)
    with pytest.raises(ValueError, match="must have 28x28 .*, but have:.*20 28"):
        for step, _ in enumerate(inputs.train_batches().take(3)):
            bad.check(step, bad.update(step))


def test_files_require_image_size(tmp_path):
    write_pngs(tmp_path, [28] * 4)
    for crop in ("none", "auto"):
        with pytest.raises(ValueError, match="image_size=0, train_crop="):
            pipeline(tmp_path, image_size=0, train_crop=crop, eval_crop=crop)


def test_arrays_of_a_different_size_need_a_crop():
    source = data.arrays(np.zeros((2, 8, 8, 3), np.uint8), [0, 0], ["a"])
    with pytest.raises(ValueError, match="must match the source's size, 8x8"):
        data.train_batches(source, batch_size=2, seed=0, image_size=16, train_crop="none")


@pytest.mark.parametrize(
    ("fields", "crop", "shift"),
    [
        ({"image_size": 28}, "resize", 3),
        ({"image_size": 63, "shift": 1}, "resize", 1),
        ({"image_size": 64}, "inception", 0),
        ({"image_size": 28, "train_crop": "inception"}, "inception", 0),
        ({"image_size": 28, "train_crop": "resize"}, "resize", 0),
    ],
)
def test_small_images_are_shifted_by_default(fields, crop, shift, tmp_path):
    write_pngs(tmp_path, [28] * 4)
    inputs = pipeline(tmp_path, **fields)
    assert (inputs.train_options.train_crop, inputs.train_options.shift) == (crop, shift)
    assert inputs.test_options.eval_crop == "resize"
    assert f"train_crop {crop}, shift {shift}, flip on" in inputs.summary()


@pytest.mark.parametrize(
    ("options", "crop", "shift"),
    [({}, "resize", 4), ({"flip": "off"}, "resize", 4), ({"train_crop": "resize"}, "resize", 0)],
)
def test_sources_without_a_crop_of_their_own_get_the_default_shift(options, crop, shift):
    source = data.arrays(np.zeros((2, 8, 8, 3), np.uint8), [0, 0], ["a"])
    source = dataclasses.replace(source, options=options)
    resolved = data.Options(image_size=32).resolve(source)
    assert (resolved.train_crop, resolved.shift) == (crop, shift)


def test_digits_get_no_default_shift():
    inputs = data.from_config({"name": "digits", "image_size": 16}, batch_size=4, seed=0)
    assert (inputs.train_options.train_crop, inputs.train_options.shift) == ("resize", 0)
