"""Tests of the errors for damaged and malformed .npz files, and for files of other models."""

import json
import re
import struct
import zipfile

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.names import POSITIONS
from keras_vit.checkpoints.readers import NpzFile
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


def test_rejects_missing_file(tmp_path):
    assert_rejected(tmp_path / "missing.npz", "The file does not exist")


@pytest.mark.parametrize("share", [0.0, 0.999])
def test_rejects_truncated_file(share, tmp_path):
    content = VIT_TOKEN.read_bytes()
    path = tmp_path / "cut.npz"
    path.write_bytes(content[: int(share * len(content))])
    assert_rejected(path, "complete .npz file")


def test_damaged_zip_directory_raises_only_value_errors(tmp_path):
    """Damages one byte at a time. Reading the file may still succeed."""
    intact = VIT_TOKEN.read_bytes()
    path = tmp_path / "damaged.npz"
    random = np.random.default_rng(0)
    directory = intact.index(b"PK\x01\x02")
    end_of_directory = intact.rindex(b"PK\x05\x06")
    positions = [
        *range(end_of_directory, len(intact)),
        *random.integers(directory, end_of_directory, 60),
    ]
    for position in positions:
        content = bytearray(intact)
        content[position] ^= 0xFF
        path.write_bytes(content)
        try:
            checkpoints.infer_architecture(path)
        except ValueError as error:
            assert str(path) in str(error)


def test_rejects_flipped_bit(tmp_path):
    content = bytearray(VIT_TOKEN.read_bytes())
    with zipfile.ZipFile(VIT_TOKEN) as archive:
        offset = archive.getinfo("embedding/kernel.npy").header_offset
    content[offset + 20_000] ^= 0x10  # in the values of the kernel
    path = tmp_path / "flipped.npz"
    path.write_bytes(content)
    assert_rejected(path, "'embedding/kernel' cannot be read .*CRC")


def test_rejects_missing_array(tmp_path):
    arrays = read_arrays(VIT_TOKEN)
    del arrays["Transformer/encoder_norm/bias"]
    np.savez(tmp_path / "missing.npz", **arrays)
    assert_rejected(tmp_path / "missing.npz", r"1 missing \(Transformer/encoder_norm/bias\)")


def test_rejects_wrong_shape(write_changed):
    path = write_changed("embedding/bias", np.zeros((64, 1), "float32"))
    assert_rejected(path, r"'embedding/bias'.*\(64,\)")


@pytest.mark.parametrize("shape", [(17, 64), (2, 17, 64)], ids=str)
def test_rejects_wrong_shape_of_positions(shape, write_changed):
    path = write_changed(POSITIONS, np.zeros(shape, "float32"))
    assert_rejected(path, re.escape(f"{POSITIONS!r} in the checkpoint must be (1, 17, 64)"))


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("float64", "'embedding/bias' in the checkpoint must be one of float32"),
        ("int32", "'embedding/bias' in the checkpoint must be one of float32"),
        ("complex64", "contain only numbers.*'embedding/bias.npy'"),
    ],
)
def test_rejects_wrong_dtype(dtype, message, write_changed):
    assert_rejected(write_changed("embedding/bias", np.zeros(64, dtype)), message)


def test_float16_of_both_byte_orders_becomes_float32(tmp_path):
    for dtype in ("<f2", ">f2"):
        np.savez(tmp_path / "half.npz", a=np.array([1.5, -2], dtype))
        with NpzFile(tmp_path / "half.npz") as file:
            array = file.arrays["a"].read()
        assert array.dtype == np.float32 and array.tolist() == [1.5, -2]


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


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, "datetime64[s]"),
        np.array(["a"]),
        np.zeros(2, "V3"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_rejects_non_numeric_array(array, tmp_path):
    np.savez(tmp_path / "odd.npz", a=array)
    with pytest.raises(ValueError, match="only numbers.* in 'a.npy' of .*odd.npz"):
        NpzFile(tmp_path / "odd.npz")


def write_archive(path, member, content):
    """Writes an archive with one member, and returns its path."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def npy_file(header, data=b""):
    """Returns the content of an .npy file of version 1.0."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def test_rejects_shape_that_does_not_fit_the_data(tmp_path):
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
    content = npy_file(repr(header).encode(), bytes(64))
    path = write_archive(tmp_path / "huge.npz", "embedding/bias.npy", content)
    assert_rejected(path, "does not fit")


def test_rejects_oversized_npy_header(tmp_path):
    # Version 2.0 has headers of up to 4 GiB.
    content = b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 30) + b" " * 64
    path = write_archive(tmp_path / "header.npz", "embedding/bias.npy", content)
    assert_rejected(path, "'embedding/bias.npy' of the checkpoint is not an array")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,",
        "(" * 5000,
        "{'descr': [], 'shape': 3}",
        "{'descr': 'x', 'fortran_order': False, 'shape': (1,)}",
    ],
    ids=["unclosed", "nested", "no order", "dtype"],
)
def test_rejects_invalid_npy_header(header, tmp_path):
    content = npy_file(header.encode().ljust(118) + b"\n", bytes(4))
    path = write_archive(tmp_path / "odd.npz", "a.npy", content)
    with pytest.raises(ValueError, match="numpy's format .*odd.npz|never loaded.*odd.npz"):
        NpzFile(path)


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
        ("timm_token.safetensors", {"num_layers": 3}, "num_layers=2.*num_layers=3"),
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
    path.write_bytes(VIT_TOKEN.read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"keras_vit " + facts.encode()
    assert_rejected(path, "The zip comment of the weights is invalid")


def test_comment_does_not_set_the_number_of_layers(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, **{"embedding/kernel": np.zeros((4, 4, 3, 8), "float32")})
    arguments = {"num_layers": 10**8, "num_heads": 2, "mlp_dim": 4}
    facts = {"constructor": "VisionTransformer", "arguments": arguments}
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"keras_vit " + json.dumps(facts).encode()
    with pytest.raises(ValueError, match="does not determine|no weights of a known"):
        keras_vit.from_pretrained(path, input_shape=(8, 8, 3))
