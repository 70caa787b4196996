"""Tests of the errors for damaged .safetensors files, and for malformed JSON files."""

import json
import shutil

import pytest

from keras_vit import checkpoints

from ..shared import GOLDEN
from .helpers import assert_rejected, small_model, write_safetensors_bytes

pytestmark = pytest.mark.one_backend  # files are read with numpy

TIMM_TOKEN = GOLDEN / "timm_token.safetensors"
INVALID_HEADER = "header of the .safetensors file is invalid"


def read_header():
    """Returns the header of `timm_token.safetensors` and the bytes after it."""
    content = TIMM_TOKEN.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def assert_header_is_rejected(text, data, tmp_path):
    path = write_safetensors_bytes(tmp_path / "changed.safetensors", text, data)
    assert_rejected(path, INVALID_HEADER, small_model(exact_gelu=True))


@pytest.mark.parametrize(
    "name, changes",
    [
        ("head.bias", {"data_offsets": [0, 40]}),  # overlaps with another array
        ("head.bias", {"shape": [-1, -10]}),
        ("head.bias", {"dtype": "F7"}),
        ("pos_embed", {"shape": [1, 1 << 40, 64], "data_offsets": [320552, 320552 + (1 << 48)]}),
    ],
    ids=["offsets", "negative", "dtype", "huge"],
)
def test_rejects_invalid_field_of_an_array(name, changes, tmp_path):
    header, data = read_header()
    header[name].update(changes)
    assert_header_is_rejected(json.dumps(header), data, tmp_path)


def test_rejects_array_without_shape(tmp_path):
    header, data = read_header()
    del header["head.bias"]["shape"]
    assert_header_is_rejected(json.dumps(header), data, tmp_path)


def test_rejects_bytes_of_no_array(tmp_path):
    header, data = read_header()
    del header["pos_embed"]
    assert_header_is_rejected(json.dumps(header), data, tmp_path)


@pytest.mark.parametrize(
    "header",
    ["[]", "[" * 100_000, '{"a": 1, "a": 2}'],
    ids=["list", "nested", "duplicate"],
)
def test_rejects_header_of_another_format(header, tmp_path):
    _, data = read_header()
    assert_header_is_rejected(header, data, tmp_path)


def header_of_shape(shape):
    """Returns the header of a file with one array, which has four bytes."""
    return json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}})


def test_rejects_shape_of_too_many_values(tmp_path):
    assert_header_is_rejected(header_of_shape([10**300] * 4000), bytes(4), tmp_path)


def test_rejects_shape_of_too_many_axes(tmp_path):
    path = tmp_path / "deep.safetensors"
    write_safetensors_bytes(path, header_of_shape([1] * 100), bytes(4))
    assert_rejected(path, "contains no weights of a known family")


@pytest.mark.parametrize("length", [0, 8, 5000])
def test_rejects_truncated_file(length, tmp_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(TIMM_TOKEN.read_bytes()[:length])
    assert_rejected(path, INVALID_HEADER, small_model(exact_gelu=True))


def test_rejects_header_longer_than_the_file(tmp_path):
    path = tmp_path / "long.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    assert_rejected(path, INVALID_HEADER)


@pytest.mark.parametrize(
    "name", ["config.json", "preprocessor_config.json", "model.safetensors.index.json"]
)
def test_rejects_deeply_nested_json(name, tmp_path):
    if "index" not in name:
        shutil.copy(TIMM_TOKEN, tmp_path / "model.safetensors")
    (tmp_path / name).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(ValueError, match="recursion"):
        checkpoints.infer_architecture(tmp_path, num_heads=4)
