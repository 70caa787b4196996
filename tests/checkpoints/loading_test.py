import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.positions import resample

SMALL = {"patch_size": 8, "num_layers": 2, "hidden_size": 64, "mlp_dim": 128, "num_heads": 4, "classes": 10}


def _small(side=32, **arguments):
    return keras_vit.VisionTransformer(**{**SMALL, "input_shape": (side, side, 3), **arguments})


@pytest.fixture
def arrays(golden):
    return dict(golden("vit_token.ckpt"))


@pytest.fixture
def save(tmp_path):
    def save(arrays, name="checkpoint.npz"):
        np.savez(tmp_path / name, **arrays)
        return str(tmp_path / name)

    return save


def _expect_refusal(path, message, model=None):
    """The load is refused with the message, and nothing changed in the model."""
    model = model or _small()
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        checkpoints.load(model, path)
    for old, new in zip(before, model.get_weights()):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("shape", [(48, 48), (16, 16), (32, 64), (24, 40)])
def test_positions_are_resampled_to_any_grid_and_nothing_else_changes(shape, golden, arrays):
    model = _small(input_shape=(*shape, 3), weights=golden.path("vit_token.ckpt"))
    positions = keras.ops.convert_to_numpy(model.get_layer("position_embedding").pos_embedding)
    old = arrays["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(positions, resample(old, (4, 4), (shape[0] // 8, shape[1] // 8)))
    np.testing.assert_array_equal(positions[:, 0], old[:, 0])
    kernel = keras.ops.convert_to_numpy(model.get_layer("embedding").kernel)
    np.testing.assert_array_equal(kernel, arrays["embedding/kernel"].reshape(192, 64))


def test_a_grid_of_as_many_patches_in_another_shape_is_resampled(golden, arrays):
    model = _small(input_shape=(16, 64, 3), weights=golden.path("vit_token.ckpt"))  # 2x8 from 4x4
    positions = keras.ops.convert_to_numpy(model.get_layer("position_embedding").pos_embedding)
    assert np.abs(positions - arrays["Transformer/posembed_input/pos_embedding"]).max() > 0.1


def test_a_checkpoint_loads_into_mixed_precision(golden):
    images = golden("vit_token.io")["inputs"]
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = _small(weights=golden.path("vit_token.ckpt"))
    logits = keras.ops.convert_to_numpy(model(images))
    np.testing.assert_allclose(logits, golden("vit_token.io")["logits"], atol=0.05)


def test_another_number_of_classes_is_refused_and_named(golden):
    with pytest.raises(ValueError, match=r"trained for 10 classes; build the model with classes=10. Received: shape"):
        _small(classes=7, weights=golden.path("vit_token.ckpt"))


def test_a_head_that_is_not_asked_for_is_refused(golden):
    _expect_refusal(golden.path("vit_token.ckpt"), "2 left over .head/bias, head/kernel.", _small(include_top=False))


def test_another_architecture_is_refused(golden):
    path = golden.path("vit_token.ckpt")
    _expect_refusal(path, "16 missing", _small(num_layers=3))
    _expect_refusal(path, "16 left over .*and 11 more", _small(num_layers=1))
    _expect_refusal(path, r"has another shape than the model's, \(64, 256\).*shape=\(64, 128\)", _small(mlp_dim=256))
    _expect_refusal(path, "1 left over .cls.", _small(classifier="gap"))
    _expect_refusal(path, r"embedding/kernel.*\(16, 16, 3, 64\).*shape=\(8, 8, 3, 64\)", _small(64, patch_size=16))


def test_a_missing_and_an_extra_array_are_named(arrays, save):
    del arrays["cls"]
    arrays["surprise"] = np.zeros(3, "float32")
    _expect_refusal(save(arrays), r"1 missing \(cls\); 1 left over \(surprise\). Received: .*checkpoint.npz")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("cls", np.full((1, 1, 64), np.nan, "float32"), "'cls' of the checkpoint holds NaN or infinity"),
        ("cls", np.zeros((1, 1, 64), "int32"), "'cls' of the checkpoint must hold floats. Received: dtype=int32"),
        ("head/bias", np.zeros((10, 1), "float32"), "another shape"),
        (
            "Transformer/posembed_input/pos_embedding",
            np.zeros((1, 14, 64), "float32"),
            r"tokens of a square|square grid",
        ),
    ],
)
def test_a_bad_array_is_refused_before_anything_changes(name, array, message, arrays, save):
    arrays[name] = array
    _expect_refusal(save(arrays), message)


def test_a_pickled_object_is_never_loaded(arrays, save):
    arrays["cls"] = np.array([{"a": 1}], dtype=object)
    _expect_refusal(save(arrays), "'cls.npy' is a pickled object, which is never loaded")


def test_what_is_no_checkpoint_is_refused(tmp_path, golden):
    text = tmp_path / "text.npz"
    text.write_text("not an archive")
    _expect_refusal(str(text), "must be a readable .npz file.*Received: .*text.npz")
    _expect_refusal(str(tmp_path / "nowhere.npz"), "must be a readable .npz file.*No such file")
    _expect_refusal(str(tmp_path), "must be a readable .npz file")
    other = tmp_path / "other.npz"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("notes.txt", "no arrays here")
    _expect_refusal(str(other), "holds arrays in numpy's format only, and 'notes.txt' is none")
    whole = Path(golden.path("vit_token.ckpt")).read_bytes()
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole[: len(whole) // 2])
    _expect_refusal(str(cut), "must be a readable .npz file, an uncut zip")


def test_a_flipped_bit_at_the_end_of_the_file_is_found_before_anything_changes(arrays, save):
    # The largest array last, so that its middle is far from its header, which is read first.
    last = "Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"
    path = Path(save({**arrays, last: arrays.pop(last)}))
    with zipfile.ZipFile(path) as archive:
        member = archive.infolist()[-1]
    content = bytearray(path.read_bytes())
    content[member.header_offset + member.file_size // 2] ^= 0x10
    path.write_bytes(content)
    _expect_refusal(path, f"The array '{last}' of the checkpoint cannot be read .Bad CRC-32")


def test_a_model_inside_another_loads(golden):
    inner = _small()
    images = keras.Input((32, 32, 3))
    outer = keras.Model(images, inner(images))
    checkpoints.load(inner, golden.path("vit_token.ckpt"))
    expected = golden("vit_token.io")
    result = keras.ops.convert_to_numpy(outer(expected["inputs"]))
    np.testing.assert_allclose(result, expected["logits"], atol=1e-5)
