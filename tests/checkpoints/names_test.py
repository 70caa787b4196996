"""Tests of the canonical names of weights, and of the tables that translate other names."""

import numpy as np
import pytest

from keras_vit.checkpoints.dialects.dialect import Alias, Dialect, Folder, Packed, Token
from keras_vit.checkpoints.dialects.vit_jax import VIT_JAX
from keras_vit.checkpoints.formats import open_checkpoint
from keras_vit.checkpoints.names import ATTENTION, MLP
from keras_vit.checkpoints.readers import LazyArray

from ..shared import assert_same_arrays, read_arrays
from .helpers import VIT_TOKEN

pytestmark = pytest.mark.one_backend

DIALECT = Dialect(
    "tiny",
    "patches.weight",
    (
        ("patches", "embedding"),
        ("token", Token("cls", 1)),
        ("layers.{i}.kv_{kind}", Packed(f"{ATTENTION}key", f"{ATTENTION}value")),
        ("{tower}layers.{i}.up", f"{MLP}Dense_0"),
        ("{tower}layers.{i}.fc1", Alias(f"{MLP}Dense_0")),
    ),
    layout="pytorch",
    choices={"tower": ("", "model.")},
)


def make_arrays():
    """Returns arrays of a model, under their canonical names."""
    attention = ATTENTION.format(i=1)
    shapes = {
        "embedding/kernel": (2, 2, 2, 3),
        "cls": (1, 1, 3),
        f"{attention}key/kernel": (3, 2, 2),
        f"{attention}value/kernel": (3, 2, 2),
        f"{MLP.format(i=1)}Dense_0/bias": (5,),
    }
    random = np.random.default_rng(0)
    return {name: random.random(shape, "float32") for name, shape in shapes.items()}


def write_tensors(arrays):
    """Returns the arrays in the layout of the dialect, and the arrays that it cannot represent."""
    return DIALECT.write(arrays, num_layers=2, folder=Folder({}, tower="model."))


def test_reads_both_mlp_numberings(tmp_path):
    # The names of old versions of Flax number the layers of all types together.
    joint = read_arrays(VIT_TOKEN)
    assert "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel" in joint
    with open_checkpoint(VIT_TOKEN) as checkpoint:
        arrays = {name: array.read() for name, array in checkpoint.arrays.items()}
    assert "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel" in arrays
    assert set(map(VIT_JAX.name_in_file, arrays)) == joint.keys()
    np.savez(tmp_path / "separate.npz", **arrays)
    with open_checkpoint(tmp_path / "separate.npz") as checkpoint:
        assert checkpoint.arrays.keys() == arrays.keys()


def test_dialect_writes_names_and_shapes_of_the_table():
    tensors, unsupported = write_tensors({**make_arrays(), "more": np.ones(1)})
    assert set(unsupported) == {"more"}
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "patches.weight": (3, 2, 2, 2),
        "token": (3,),
        "layers.1.kv_weight": (8, 3),
        "model.layers.1.up.bias": (5,),
    }


def test_dialect_reads_what_it_writes():
    arrays = make_arrays()
    tensors, _ = write_tensors(arrays)
    # Read the alias, and a name without the tower.
    tensors["layers.1.fc1.bias"] = tensors.pop("model.layers.1.up.bias")
    restored = {}
    for name, tensor in tensors.items():
        lazy = LazyArray(tensor.shape, "float32", (name,), lambda tensor=tensor: tensor)
        restored |= {path: array.read() for path, array in DIALECT.read(name, lazy, num_heads=2)}
    assert_same_arrays(restored, arrays)
