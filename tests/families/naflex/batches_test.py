"""Tests of NaFlex batches against those of `Siglip2ImageProcessor`."""

import numpy as np
import pytest

import keras_vit
from keras_vit import data, naflex

from ...shared import assert_close

pytestmark = pytest.mark.one_backend

MEAN = [127.5] * 3


@pytest.mark.parametrize("max_patches", [64, 1024])
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
    assert_close(np.stack(result), expected)


def test_pack_rejects_masks_that_are_not_prefixes(reference):
    patches, shapes, mask = (reference[name] for name in ("images", "spatial_shapes", "mask"))
    for wrong in (0 * mask, mask[:, ::-1]):
        with pytest.raises(ValueError, match="`mask` must be 1 for the first rows"):
            naflex.pack(patches, shapes, wrong)


def test_pack_rejects_invalid_shapes(reference):
    patches = reference["images"]
    shapes = reference["spatial_shapes"]
    with pytest.raises(ValueError, match="must have 1 to 16 patches per image"):
        naflex.pack(patches, 9 * shapes)
    # 99 values are 33 RGB pixels, which cannot form a square.
    for wrong in (patches[0], np.zeros((2, 16, 99))):
        with pytest.raises(ValueError, match="`patches` must be"):
            naflex.pack(wrong, shapes[:2])


@pytest.mark.parametrize("wrong", [{"patch_size": 0}, {"max_patches": 2.5}])
def test_preprocess_rejects_sizes_that_are_not_positive_integers(wrong, pictures):
    sizes = {"patch_size": 4, "max_patches": 16, **wrong}
    with pytest.raises(ValueError, match="must be a positive integer"):
        naflex.preprocess(pictures, MEAN, MEAN, **sizes)
