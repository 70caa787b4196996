"""Tests of loading weights into models with another grid, precision or architecture."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.names import POSITIONS
from keras_vit.checkpoints.position_embeddings import resample

from ..shared import GOLDEN, read_arrays, to_numpy
from .helpers import VIT_TOKEN, assert_rejected, small_model


@pytest.fixture
def reference():
    """Returns the inputs and the logits of `vit_jax`."""
    return read_arrays(GOLDEN / "vit_token.io.npz")


@pytest.mark.parametrize(
    "height, width",
    # The grid of 16x64 has as many patches as the grid of the file, 4x4.
    [(48, 48), (16, 16), (32, 64), (24, 40), (16, 64)],
)
def test_grid_changes_positions_but_not_patch_kernel(height, width):
    model = small_model(input_shape=(height, width, 3), weights=VIT_TOKEN)
    arrays = read_arrays(VIT_TOKEN)
    positions = to_numpy(model.get_layer("position_embedding").pos_embedding)
    expected = resample(arrays[POSITIONS], (4, 4), (height // 8, width // 8))
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(positions[:, 0], arrays[POSITIONS][:, 0])
    kernel = to_numpy(model.get_layer("embedding").kernel)
    np.testing.assert_array_equal(kernel, arrays["embedding/kernel"].reshape(192, 64))


def test_loads_into_mixed_precision_model(reference):
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = small_model(weights=VIT_TOKEN)
    logits = to_numpy(model(reference["inputs"]))
    np.testing.assert_allclose(logits, reference["logits"], atol=0.05)


def test_loads_into_nested_model(reference):
    inner = small_model()
    images = keras.Input((32, 32, 3))
    outer = keras.Model(images, inner(images))
    checkpoints.load(inner, VIT_TOKEN)
    logits = to_numpy(outer(reference["inputs"]))
    np.testing.assert_allclose(logits, reference["logits"], atol=1e-5)


@pytest.mark.one_backend
def test_class_mismatch_error_names_the_number_of_classes():
    message = r"include_top=False, or load .*Received: shape=\(64, 10\)"
    with pytest.raises(ValueError, match=message):
        small_model(classes=7, weights=VIT_TOKEN)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "arguments",
    [{"num_layers": 3}, {"num_layers": 1}, {"mlp_dim": 256}, {"patch_size": 16}],
    ids=str,
)
def test_architecture_mismatch_error_describes_the_file(arguments):
    message = r"VisionTransformer \(patch_size=8, .* num_heads=4\)"
    assert_rejected(VIT_TOKEN, message, small_model(**arguments))


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["model.pth", "model.pt", "pytorch_model.bin"])
def test_rejects_pytorch_file(name, tmp_path):
    (tmp_path / name).write_bytes(b"PK")
    message = "PyTorch files are not supported.* safetensors.*Received: "
    with pytest.raises(ValueError, match=message):
        checkpoints.load(keras_vit.ViT_Ti16(), tmp_path / name)
