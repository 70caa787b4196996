import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.position_embeddings import resample

from ..shared import GOLDEN_SIZES


def _small(side=32, **arguments):
    return keras_vit.VisionTransformer(
        **{**GOLDEN_SIZES, "input_shape": (side, side, 3), **arguments}
    )


@pytest.fixture
def arrays(golden):
    return dict(golden("vit_token.ckpt"))


def _assert_rejected(path, message, model=None):
    """Checks that loading raises a `ValueError` with this message and leaves the model
    unchanged."""
    model = model or _small()
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        checkpoints.load(model, path)
    for old, new in zip(before, model.get_weights()):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("shape", [(48, 48), (16, 16), (32, 64), (24, 40)])
def test_grid_changes_positions_but_not_patch_kernel(shape, golden, arrays):
    model = _small(input_shape=(*shape, 3), weights=golden.path("vit_token.ckpt"))
    positions = keras.ops.convert_to_numpy(model.get_layer("position_embedding").pos_embedding)
    old = arrays["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(positions, resample(old, (4, 4), (shape[0] // 8, shape[1] // 8)))
    np.testing.assert_array_equal(positions[:, 0], old[:, 0])
    kernel = keras.ops.convert_to_numpy(model.get_layer("embedding").kernel)
    np.testing.assert_array_equal(kernel, arrays["embedding/kernel"].reshape(192, 64))


@pytest.mark.one_backend
def test_resamples_grid_of_equal_size_but_different_shape(golden, arrays):
    # A 2x8 grid; the file has 4x4.
    model = _small(input_shape=(16, 64, 3), weights=golden.path("vit_token.ckpt"))
    positions = keras.ops.convert_to_numpy(model.get_layer("position_embedding").pos_embedding)
    assert np.abs(positions - arrays["Transformer/posembed_input/pos_embedding"]).max() > 0.1


def test_loads_into_mixed_precision_model(golden):
    images = golden("vit_token.io")["inputs"]
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = _small(weights=golden.path("vit_token.ckpt"))
    logits = keras.ops.convert_to_numpy(model(images))
    np.testing.assert_allclose(logits, golden("vit_token.io")["logits"], atol=0.05)


@pytest.mark.one_backend
def test_class_mismatch_error_names_the_number_of_classes(golden):
    with pytest.raises(
        ValueError,
        match=r"include_top=False, or load .*Received: shape=\(64, 10\)",
    ):
        _small(classes=7, weights=golden.path("vit_token.ckpt"))


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "arguments",
    [{"num_layers": 3}, {"num_layers": 1}, {"mlp_dim": 256}, {"patch_size": 16}],
    ids=str,
)
def test_architecture_mismatch_error_describes_the_file(arguments, golden):
    message = r"VisionTransformer \(patch_size=8, .* num_heads=4\)"
    _assert_rejected(golden.path("vit_token.ckpt"), message, _small(**arguments))


@pytest.mark.one_backend
def test_rejects_class_token_missing_in_the_model(golden):
    _assert_rejected(golden.path("vit_token.ckpt"), "cls", _small(classifier="gap"))


def test_loads_into_nested_model(golden):
    inner = _small()
    images = keras.Input((32, 32, 3))
    outer = keras.Model(images, inner(images))
    checkpoints.load(inner, golden.path("vit_token.ckpt"))
    expected = golden("vit_token.io")
    result = keras.ops.convert_to_numpy(outer(expected["inputs"]))
    np.testing.assert_allclose(result, expected["logits"], atol=1e-5)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["model.pth", "model.pt", "pytorch_model.bin"])
def test_rejects_pytorch_file(name, tmp_path):
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(
        ValueError, match="PyTorch files are not supported.* safetensors.*Received: "
    ):
        keras_vit.checkpoints.load(keras_vit.ViT_Ti16(), tmp_path / name)
