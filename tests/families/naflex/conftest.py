"""Fixtures of a small NaFlex model of SigLIP 2, and of the outputs of transformers."""

import pytest

import keras_vit
from keras_vit import checkpoints, naflex

from ...shared import FAMILY_FILES, read_arrays
from ..golden_cases import read_outputs, write_case
from .pictures import picture


@pytest.fixture(scope="module")
def processed():
    """Returns image sizes, and the patch grids and pixels that `Siglip2ImageProcessor` returned for
    them."""
    return read_arrays(FAMILY_FILES / "naflex_images.npz")


@pytest.fixture(scope="module")
def pictures(processed):
    """Returns the pictures that `Siglip2ImageProcessor` processed."""
    return [picture(i, *size) for i, size in enumerate(processed["sizes"].tolist())]


@pytest.fixture(scope="module")
def reference():
    """Returns inputs and outputs of `Siglip2Model`."""
    return read_outputs("siglip2_naflex")


@pytest.fixture(scope="module")
def batch(reference):
    """Returns the inputs of `Siglip2Model` as a NaFlex batch."""
    return naflex.pack(reference["images"], reference["spatial_shapes"], reference["mask"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with the weights and config of `Siglip2Model`."""
    return write_case("siglip2_naflex", tmp_path_factory.mktemp("naflex"))


@pytest.fixture(scope="module")
def model(folder):
    return keras_vit.from_pretrained(folder)


@pytest.fixture
def fixed_model(folder):
    """Returns a `VisionTransformer` for images of 32x32 pixels with the weights of the NaFlex
    model."""
    _, arguments = checkpoints.infer_architecture(folder)
    del arguments["max_patches"]
    model = keras_vit.VisionTransformer(**arguments)
    checkpoints.load(model, folder)
    return model
