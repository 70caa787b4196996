"""Tests of the errors for damaged and malformed .npz files, and for files of other models."""

import json
import re
import shutil
import struct
import zipfile

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.names import POSITIONS
from keras_vit.families.inference import stages

from ..shared import GOLDEN, read_arrays
from .helpers import VIT_TOKEN, assert_rejected, small_model

pytestmark = pytest.mark.one_backend  # files are read with numpy


@pytest.fixture
def write_changed(tmp_path):
    """Returns a function that writes `vit_token.ckpt.npz` with another array."""

    def write(name, array):
        np.savez(tmp_path / "changed.npz", **{**read_arrays(VIT_TOKEN), name: array})
        return tmp_path / "changed.npz"

    return write


def write_archive(path, member, content):
    """Writes an archive with one member, and returns its path."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def npy_file(header):
    """Returns the content of an .npy file of version 1.0 with 64 bytes of data."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(64)


def set_comment(path, facts):
    """Sets the zip comment of an .npz file, as `save` does."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"keras_vit " + facts.encode()


def test_rejects_missing_file(tmp_path):
    assert_rejected(tmp_path / "missing.npz", "The file does not exist")


def test_rejects_truncated_file(tmp_path):
    path = tmp_path / "cut.npz"
    path.write_bytes(VIT_TOKEN.read_bytes()[:-100])
    assert_rejected(path, "complete .npz file")


def test_damaged_zip_directory_raises_only_value_errors(tmp_path):
    """Damages one byte at a time. Reading the file may still succeed."""
    intact = VIT_TOKEN.read_bytes()
    path = tmp_path / "damaged.npz"
    directory = intact.index(b"PK\x01\x02")
    end_of_directory = intact.rindex(b"PK\x05\x06")
    # The record at the end has few bytes, so damage all of them.
    every_61st = range(directory, end_of_directory, 61)
    for position in [*every_61st, *range(end_of_directory, len(intact))]:
        content = bytearray(intact)
        content[position] ^= 0xFF
        path.write_bytes(content)
        try:
            checkpoints.infer_architecture(path)
        except ValueError as error:
            assert str(path) in str(error)


def test_rejects_array_with_another_checksum(tmp_path):
    content = bytearray(VIT_TOKEN.read_bytes())
    # In the zip directory, the checksum of an array starts 30 bytes before its name.
    content[content.rindex(b"embedding/kernel.npy") - 30] ^= 1
    path = tmp_path / "flipped.npz"
    path.write_bytes(content)
    assert_rejected(path, "'embedding/kernel' cannot be read .*CRC")


def test_rejects_missing_array(tmp_path):
    arrays = read_arrays(VIT_TOKEN)
    del arrays["Transformer/encoder_norm/bias"]
    np.savez(tmp_path / "missing.npz", **arrays)
    assert_rejected(tmp_path / "missing.npz", r"1 missing \(Transformer/encoder_norm/bias\)")


@pytest.mark.parametrize(
    "name, shape, expected",
    [
        ("embedding/bias", (64, 1), "(64,)"),
        (POSITIONS, (17, 64), "(1, 17, 64)"),
        (POSITIONS, (2, 17, 64), "(1, 17, 64)"),
    ],
    ids=str,
)
def test_rejects_wrong_shape(name, shape, expected, write_changed):
    path = write_changed(name, np.zeros(shape, "float32"))
    assert_rejected(path, re.escape(f"{name!r} in the checkpoint must be {expected}"))


def test_rejects_wrong_dtype(write_changed):
    path = write_changed("embedding/bias", np.zeros(64, "float64"))
    assert_rejected(path, "'embedding/bias' in the checkpoint must be one of float32")


@pytest.mark.parametrize("dtype", ["complex64", "V3", [("a", "f2")]], ids=str)
def test_rejects_array_of_other_values(dtype, write_changed):
    path = write_changed("embedding/bias", np.zeros(64, dtype))
    assert_rejected(path, "only numbers.*'embedding/bias.npy'")


def test_rejects_nonfinite_array(write_changed):
    positions = read_arrays(VIT_TOKEN)[POSITIONS]
    positions[0, -1, -1] = np.inf
    assert_rejected(write_changed(POSITIONS, positions), "pos_embedding.*NaN or infinity")


def test_rejects_pickled_object(write_changed, tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    path = write_changed("embedding/bias", np.array([Trap()], dtype=object))
    assert_rejected(path, "pickled objects are never loaded")
    assert not (tmp_path / "sprung").exists()


def test_rejects_shape_that_does_not_fit_the_data(tmp_path):
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
    path = write_archive(tmp_path / "huge.npz", "embedding/bias.npy", npy_file(str(header)))
    assert_rejected(path, "does not fit")


def test_rejects_deeply_nested_npy_header(tmp_path):
    path = write_archive(tmp_path / "nested.npz", "embedding/bias.npy", npy_file("(" * 5000))
    assert_rejected(path, "'embedding/bias.npy' of the checkpoint is not an array")


def test_rejects_member_that_is_not_an_array(tmp_path):
    path = write_archive(tmp_path / "other.npz", "readme.txt", "hello")
    assert_rejected(path, "'readme.txt' of the checkpoint is not an array")


def test_rejects_file_without_model_weights(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(3, "float32"))
    assert_rejected(tmp_path / "other.npz", "contains no weights of a known family")


@pytest.mark.parametrize(
    "file, arguments, message",
    [
        ("hybrid_2stage.ckpt.npz", {}, r"resnet_blocks=\(1, 2\)\)"),
        ("vit_token.ckpt.npz", {"num_heads": 2}, "num_heads=4.*num_heads=2"),
    ],
)
def test_architecture_error_lists_both_arguments(file, arguments, message):
    assert_rejected(GOLDEN / file, message, small_model(**arguments))


@pytest.mark.parametrize("number", ["99999999", "9" * 5000], ids=["8 digits", "5000 digits"])
def test_block_number_does_not_set_the_number_of_layers(number, write_changed):
    path = write_changed(f"Transformer/encoderblock_{number}/x", np.zeros(1, "float32"))
    with pytest.raises(ValueError, match="3 layers|unused .*encoderblock_9999"):
        keras_vit.from_pretrained(path)
    shapes = {"block1/unit99999999/conv1/kernel": (1,), f"block{number}/unit01/x": (1,)}
    assert stages(shapes) == (1, 1)


@pytest.mark.parametrize(
    "facts", ["{", "[]", '{"grid": 4}', '{"preprocessing": {"mean": 0}}'], ids=str
)
def test_rejects_damaged_comment(facts, tmp_path):
    path = tmp_path / "model.npz"
    shutil.copy(VIT_TOKEN, path)
    set_comment(path, facts)
    assert_rejected(path, "The zip comment of the weights is invalid")


def test_comment_does_not_set_the_number_of_layers(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, **{"embedding/kernel": np.zeros((4, 4, 3, 8), "float32")})
    arguments = {"num_layers": 10**8, "num_heads": 2, "mlp_dim": 4}
    facts = {"constructor": "VisionTransformer", "arguments": arguments}
    set_comment(path, json.dumps(facts))
    with pytest.raises(ValueError, match="does not determine|no weights of a known"):
        keras_vit.from_pretrained(path, input_shape=(8, 8, 3))
