"""Tests of the errors for damaged .safetensors files, and for malformed JSON files."""

import json
import shutil

import pytest

from keras_vit import checkpoints

from ..shared import GOLDEN
from .helpers import assert_rejected

pytestmark = pytest.mark.one_backend  # files are read with numpy

TIMM_TOKEN = GOLDEN / "timm_token.safetensors"
INVALID_HEADER = "header of the .safetensors file is invalid"


def write_safetensors(path, header, data):
    """Writes a .safetensors file with a text as its header, and returns its path."""
    header = header.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


@pytest.mark.parametrize("length", [0, 5000])
def test_rejects_truncated_file(length, tmp_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(TIMM_TOKEN.read_bytes()[:length])
    assert_rejected(path, INVALID_HEADER)


def test_rejects_header_longer_than_the_file(tmp_path):
    path = tmp_path / "long.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    assert_rejected(path, INVALID_HEADER)


def test_rejects_overlapping_arrays(tmp_path):
    path = tmp_path / "overlap.safetensors"
    array = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    write_safetensors(path, json.dumps({"a": array, "b": array}), bytes(4))
    assert_rejected(path, INVALID_HEADER)


def test_rejects_array_of_too_many_axes(tmp_path):
    path = tmp_path / "deep.safetensors"
    # NumPy supports 64 axes.
    array = {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}
    write_safetensors(path, json.dumps({"a": array}), bytes(4))
    assert_rejected(path, "contains no weights of a known family")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_rejects_deeply_nested_json(name, tmp_path):
    if "index" not in name:
        shutil.copy(TIMM_TOKEN, tmp_path / "model.safetensors")
    (tmp_path / name).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(ValueError, match="recursion"):
        checkpoints.infer_architecture(tmp_path, num_heads=4)
