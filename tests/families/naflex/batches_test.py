"""Tests of NaFlex batches against those of `Siglip2ImageProcessor`."""

import numpy as np
import pytest

import keras_vit
from keras_vit import data, naflex

from .pictures import picture

pytestmark = pytest.mark.one_backend

MEAN = [127.5] * 3


@pytest.mark.parametrize("max_patches", [64, 256, 1024])
def test_photo_grids_match_reference(processed, max_patches):
    heights, widths = processed["photo_sizes"].astype("float64").T
    grids = naflex.target_grid(heights, widths, 16, max_patches)
    np.testing.assert_array_equal(np.stack(grids, 1), processed[f"photo_grids_{max_patches}"])


@pytest.mark.parametrize("max_patches", [16, 49, 100])
def test_batches_match_reference(processed, pictures, max_patches):
    pixels = processed[f"pixels_{max_patches}"] / 127.5 - 1
    expected = naflex.pack(pixels, processed[f"grids_{max_patches}"])
    result = naflex.preprocess(pictures, MEAN, MEAN, patch_size=4, max_patches=max_patches)
    # The last two columns contain the positions of the patches.
    np.testing.assert_array_equal(result[:, :, -2:], expected[:, :, -2:])
    # The reference rounds to 8 bits. Normalized pixels have a range of 2.
    assert np.abs(result - expected).max() / 2 < 1.001 / 255


@pytest.mark.parametrize("max_patches", [16, 49, 100])
def test_data_pipeline_makes_the_same_batches(pictures, max_patches):
    preprocessing = keras_vit.Preprocessing(resize="naflex")
    kind = data.inputs.kind_for(preprocessing)
    shape = naflex.batch_shape(max_patches, 4)
    result = [kind.evaluation_image(image, shape, preprocessing) for image in pictures]
    expected = naflex.preprocess(pictures, MEAN, MEAN, patch_size=4, max_patches=max_patches)
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_pack_rejects_masks_that_are_not_prefixes(reference):
    patches, shapes, mask = (reference[name] for name in ("images", "spatial_shapes", "mask"))
    with pytest.raises(ValueError, match="`mask` must be 1 for the first rows.* Received: "):
        naflex.pack(patches, shapes, 0 * mask)
    with pytest.raises(ValueError, match="`mask` must be 1 for the first"):
        naflex.pack(patches, shapes, mask[:, ::-1])


def test_pack_rejects_invalid_shapes(reference):
    patches = reference["images"]
    shapes = reference["spatial_shapes"]
    with pytest.raises(ValueError, match="must have 1 to 16 patches per image. Received: "):
        naflex.pack(patches, 9 * shapes)
    with pytest.raises(ValueError, match="`patches` must be .* Received: patches of shape"):
        naflex.pack(patches[0], shapes)
    # 99 values are 33 RGB pixels, which cannot form a square.
    with pytest.raises(ValueError, match="`patches` must be .* Received: patches of shape"):
        naflex.pack(np.zeros((2, 16, 99)), shapes[:2])


def test_preprocess_rejects_invalid_max_patches():
    with pytest.raises(ValueError, match="`max_patches` must be .* Received: max_patches=0"):
        naflex.preprocess([picture(0, 8, 8)], MEAN, MEAN, 4, 0)


@pytest.mark.parametrize(
    "images",
    [[], [np.zeros((8, 8))], [np.zeros((8, 8, 1))], [np.zeros((0, 8, 3))]],
    ids=["none", "two axes", "gray", "empty"],
)
def test_preprocess_rejects_invalid_images(images):
    message = "must be a list of one or more images .* Received: images of shapes"
    with pytest.raises(ValueError, match=message):
        naflex.preprocess(images, MEAN, MEAN, 4, 9)
