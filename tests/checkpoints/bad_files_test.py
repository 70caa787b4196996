"""Tests of the errors for damaged, malformed and mismatched checkpoint files."""

import json
import shutil
import struct
import zipfile

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.readers import NpzFile
from keras_vit.families.inference import stages

pytestmark = pytest.mark.one_backend  # files are read with numpy


@pytest.fixture
def assert_rejected(small, values):
    """Returns a function that checks that loading a file raises a `ValueError` and leaves the model
    unchanged."""

    def load(source, message, **arguments):
        model = small(**arguments)
        before = values(model)
        for head in ("keep", "new"):
            with pytest.raises(ValueError, match=message) as error:
                checkpoints.load(model, source, head=head)
            assert str(source) in str(error.value)
        for name, value in values(model).items():
            np.testing.assert_array_equal(value, before[name])

    return load


@pytest.fixture
def edited(golden_files, arrays, tmp_path):
    """Returns a function that writes a golden file with changed arrays.

    None removes an array. In keywords, "__" stands for "/".
    """

    def write(**changes):
        content = arrays(golden_files / "vit_token.ckpt.npz")
        for name, array in changes.items():
            name = name.replace("__", "/")
            content.pop(name) if array is None else content.__setitem__(name, array)
        np.savez(tmp_path / "changed.npz", **content)
        return tmp_path / "changed.npz"

    return write


def test_rejects_text_file(assert_rejected, tmp_path):
    path = tmp_path / "text.npz"
    path.write_text("not an archive")
    assert_rejected(path, "complete .npz file")


def test_damaged_zip_directory_raises_only_value_errors(assert_rejected, golden_files, tmp_path):
    """Damages one byte at a time. Reading the file may still succeed."""
    whole = (golden_files / "vit_token.ckpt.npz").read_bytes()
    path = tmp_path / "damaged.npz"
    random = np.random.default_rng(0)
    start = whole.rindex(b"PK\x05\x06")
    directory = whole.index(b"PK\x01\x02")
    for position in [*range(start, len(whole)), *random.integers(directory, start, 60)]:
        content = bytearray(whole)
        content[position] ^= 0xFF
        path.write_bytes(content)
        try:
            checkpoints.infer_architecture(path)
        except ValueError as error:
            assert str(path) in str(error)


def test_rejects_safetensors_with_extreme_shapes(assert_rejected, tmp_path):
    huge = {"a": {"dtype": "F32", "shape": [10**300] * 4000, "data_offsets": [0, 4]}}
    _write_safetensors(tmp_path / "huge.safetensors", huge, 4)
    assert_rejected(tmp_path / "huge.safetensors", "header of the .safetensors file is invalid")
    deep = {"a": {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}}
    _write_safetensors(tmp_path / "deep.safetensors", deep, 4)
    assert_rejected(tmp_path / "deep.safetensors", "contains no weights of a known family")


def _write_safetensors(path, header, size):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_rejects_truncated_npz(share, assert_rejected, golden_files, tmp_path):
    whole = (golden_files / "vit_token.ckpt.npz").read_bytes()
    path = tmp_path / "cut.npz"
    path.write_bytes(whole[: int(share * len(whole))])
    assert_rejected(path, "complete .npz file")


def test_rejects_missing_file(assert_rejected, tmp_path):
    assert_rejected(tmp_path / "missing.npz", "The file does not exist")


def test_rejects_flipped_bit(assert_rejected, golden_files, tmp_path):
    content = bytearray((golden_files / "vit_token.ckpt.npz").read_bytes())
    with zipfile.ZipFile(golden_files / "vit_token.ckpt.npz") as archive:
        offset = archive.getinfo("embedding/kernel.npy").header_offset
    content[offset + 20_000] ^= 0x10
    path = tmp_path / "flipped.npz"
    path.write_bytes(content)
    assert_rejected(path, "'embedding/kernel' cannot be read .*CRC")


def test_rejects_missing_array(assert_rejected, edited):
    assert_rejected(
        edited(Transformer__encoder_norm__bias=None), r"1 missing \(Transformer/encoder_norm/bias\)"
    )


def test_rejects_wrong_shape(assert_rejected, edited):
    assert_rejected(
        edited(embedding__bias=np.zeros((64, 1), "float32")), r"'embedding/bias'.*\(64,\)"
    )


@pytest.mark.parametrize("dtype", ["float64", "int32", "bool", "complex64", "S4"])
def test_rejects_wrong_dtype(dtype, assert_rejected, edited):
    assert_rejected(
        edited(embedding__bias=np.zeros(64, dtype)),
        "'embedding/bias' in the checkpoint must be one of float32|contain only numbers.*"
        "'embedding/bias.npy'",
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rejects_nonfinite_array(value, assert_rejected, edited, golden_files, arrays):
    name = "Transformer/posembed_input/pos_embedding"
    array = arrays(golden_files / "vit_token.ckpt.npz")[name]
    array[0, -1, -1] = value
    assert_rejected(edited(**{name.replace("/", "__"): array}), "pos_embedding.*NaN or infinity")


def test_rejects_positions_of_an_unknown_grid(assert_rejected, edited):
    positions = np.zeros((1, 19, 64), "float32")
    assert_rejected(edited(Transformer__posembed_input__pos_embedding=positions), "source_grid")


def test_rejects_pickled_object(assert_rejected, edited, tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    assert_rejected(
        edited(embedding__bias=np.array([Trap()], dtype=object)),
        "pickled objects are never loaded",
    )
    assert not (tmp_path / "sprung").exists()


def npy(header, data=b""):
    text = repr(header).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def test_rejects_npy_header_with_wrong_shape(assert_rejected, tmp_path):
    path = tmp_path / "lie.npz"
    with zipfile.ZipFile(path, "w") as archive:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
        archive.writestr("embedding/bias.npy", npy(header, b"\0" * 64))
    assert_rejected(path, "does not fit")


def test_rejects_oversized_npy_header(assert_rejected, tmp_path):
    path = tmp_path / "header.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "embedding/bias.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 30) + b" " * 64
        )
    assert_rejected(path, "'embedding/bias.npy' of the checkpoint is not an array")


def test_rejects_npz_member_that_is_not_an_array(assert_rejected, tmp_path):
    path = tmp_path / "other.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert_rejected(path, "'readme.txt' of the checkpoint is not an array")


def test_architecture_error_names_both_models(assert_rejected, golden_files, tmp_path):
    other = keras_vit.ViT_Ti16(input_shape=(32, 32, 3), classes=10)
    checkpoints.save(other, tmp_path / "ti.npz")
    assert_rejected(
        tmp_path / "ti.npz",
        r"it is ViT-Ti/16 .*num_layers=12.*is VisionTransf",
    )
    assert_rejected(golden_files / "hybrid_2stage.ckpt.npz", r"resnet_blocks=\(1, 2\)\)")
    assert_rejected(golden_files / "vit_token.ckpt.npz", "num_heads=4.*num_heads=2", num_heads=2)
    assert_rejected(golden_files / "vit_token.ckpt.npz", "num_layers=2.*num_layers=1", num_layers=1)
    assert_rejected(
        golden_files / "timm_token.safetensors", "num_layers=2.*num_layers=3", num_layers=3
    )
    bit = keras_vit.BiT_R50x1(input_shape=(32, 32, 3), classes=10)
    checkpoints.save(bit, tmp_path / "bit.npz")
    assert_rejected(
        tmp_path / "bit.npz", r"it is BiT-R50x1 \(depth=50, width_factor=1, version=2\)"
    )


def test_block_numbers_do_not_set_the_size(edited):
    array = np.zeros((1,), "float32")
    for name in ("Transformer/encoderblock_99999999/x", f"Transformer/encoderblock_{'9' * 5000}/x"):
        with pytest.raises(ValueError, match="3 layers|unused .*encoderblock_9999"):
            keras_vit.from_pretrained(edited(**{name: array}))
    assert stages(
        {"block1/unit99999999/conv1/kernel": (1,), f"block{'9' * 5000}/unit01/x": (1,)}
    ) == (1, 1)


def test_layers_of_the_comment_do_not_set_the_size(tmp_path):
    np.savez(tmp_path / "a.npz", **{"embedding/kernel": np.zeros((4, 4, 3, 8), "float32")})
    for constructor in ("VisionTransformer", "AxialVisionTransformer"):
        facts = {
            "constructor": constructor,
            "arguments": {"num_layers": 10**8, "num_heads": 2, "mlp_dim": 4},
        }
        with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
            archive.comment = b"keras_vit " + json.dumps(facts).encode()
        with pytest.raises(ValueError, match="does not determine|no weights of a known"):
            keras_vit.from_pretrained(tmp_path / "a.npz", input_shape=(8, 8, 3))


@pytest.mark.parametrize(
    "name", ["config.json", "preprocessor_config.json", "model.safetensors.index.json"]
)
def test_rejects_deeply_nested_json(name, golden_files, tmp_path):
    if "index" not in name:
        shutil.copy(golden_files / "timm_token.safetensors", tmp_path / "model.safetensors")
    (tmp_path / name).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(ValueError, match=r"invalid: .*recursion|cannot be read \(.*recursion"):
        checkpoints.infer_architecture(tmp_path, num_heads=4)


def header_of(path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


@pytest.fixture
def edited_header(golden_files, tmp_path):
    """Returns a function that writes a .safetensors file after applying `change` to its header."""

    def write(change):
        header, data = header_of(golden_files / "timm_token.safetensors")
        text = change(header)
        text = (json.dumps(header) if text is None else text).encode()
        path = tmp_path / "edited.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        return path

    return write


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["head.bias"].update(data_offsets=[0, 40]),
        lambda h: h["head.bias"].update(shape=[11]),
        lambda h: h["head.bias"].update(shape=[-1, -10]),
        lambda h: h["head.bias"].update(dtype="F7"),
        lambda h: h["head.bias"].pop("shape"),
        lambda h: h.pop("pos_embed"),
        lambda h: h.pop("cls_token"),
        lambda h: h["pos_embed"].update(
            shape=[1, 1 << 40, 64], data_offsets=[320552, 320552 + (1 << 48)]
        ),
        lambda h: "[]",
        lambda h: "{",
        lambda h: "[" * 100_000,
        lambda h: '{"a": 1, "a": 2}',
    ],
)
def test_rejects_invalid_safetensors_header(change, assert_rejected, edited_header):
    assert_rejected(
        edited_header(lambda header: text if isinstance(text := change(header), str) else None),
        "header of the .safetensors file is invalid",
        exact_gelu=True,
    )


@pytest.mark.parametrize("length", [0, 7, 8, 20, 5000])
def test_rejects_truncated_safetensors(length, assert_rejected, golden_files, tmp_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes((golden_files / "timm_token.safetensors").read_bytes()[:length])
    assert_rejected(path, "header of the .safetensors file is invalid", exact_gelu=True)


def test_rejects_safetensors_header_longer_than_the_file(assert_rejected, tmp_path):
    path = tmp_path / "long.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    assert_rejected(path, "header of the .safetensors file is invalid", exact_gelu=True)


def test_rejects_file_without_model_weights(assert_rejected, tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(3, "float32"))
    assert_rejected(tmp_path / "other.npz", "contains no weights of a known family")
    with zipfile.ZipFile(tmp_path / "empty.npz", "w"):
        pass
    assert_rejected(tmp_path / "empty.npz", "contains no weights")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,",
        "{\n  1\n 2}",
        "(" * 5000,
        "{'descr': [], 'shape': 3}",
        "{'descr': 'x', 'fortran_order': False, 'shape': (1,)}",
    ],
    ids=range(5),
)
def test_rejects_invalid_npy_headers(header, tmp_path):
    text = header.encode().ljust(118) + b"\n"
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        archive.writestr(
            "a.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(4)
        )
    with pytest.raises(ValueError, match="numpy's format .*odd.npz|never loaded.*odd.npz"):
        NpzFile(tmp_path / "odd.npz")


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, "datetime64[s]"),
        np.zeros(2, "S0"),
        np.array(["a"]),
        np.zeros(2, "V3"),
        np.zeros(2, "complex64"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_rejects_non_numeric_array(array, tmp_path):
    np.savez(tmp_path / "odd.npz", a=array)
    with pytest.raises(ValueError, match="must contain only numbers.* in 'a.npy' of .*odd.npz"):
        NpzFile(tmp_path / "odd.npz")
