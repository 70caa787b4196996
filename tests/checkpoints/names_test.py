"""Tests of canonical names of weights."""

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.dialects.dialect import IGNORED, Alias, Dialect, Folder, Packed, Token
from keras_vit.checkpoints.dialects.vit_jax import VIT_JAX
from keras_vit.checkpoints.formats import open_checkpoint
from keras_vit.checkpoints.names import ATTENTION, MLP, canonical_name, canonical_variables
from keras_vit.checkpoints.readers import LazyArray

from ..shared import GOLDEN_SIZES

pytestmark = pytest.mark.one_backend


def test_reads_both_mlp_numberings(tmp_path):
    joint = read_arrays(GOLDEN / "vit_token.ckpt.npz")
    assert "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel" in joint
    with open_checkpoint(GOLDEN / "vit_token.ckpt.npz") as checkpoint:
        names = set(checkpoint.arrays)
        current = {name: array.read() for name, array in checkpoint.arrays.items()}
    assert "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel" in names
    assert set(map(VIT_JAX.name_in_file, current)) == set(joint)
    np.savez(tmp_path / "current.npz", **current)
    with open_checkpoint(tmp_path / "current.npz") as checkpoint:
        assert set(checkpoint.arrays) == names


def test_variable_names_match_the_reference_files():
    tiny = GOLDEN_SIZES
    for case, arguments in {
        "vit_token_prelogits": {"representation_size": 48, "input_shape": (32, 32, 3)},
        "hybrid_2stage": {"resnet_blocks": (1, 2), "patch_size": 1, "input_shape": (64, 64, 3)},
    }.items():
        variables = canonical_variables(keras_vit.VisionTransformer(**{**tiny, **arguments}))
        with open_checkpoint(GOLDEN / f"{case}.ckpt.npz") as checkpoint:
            sizes = {name: np.prod(array.shape) for name, array in checkpoint.arrays.items()}
        assert {name: np.prod(variable.shape) for name, variable in variables.items()} == sizes


def test_canonical_name_is_idempotent():
    model = keras_vit.VisionTransformer(
        patch_size=8,
        num_layers=1,
        hidden_size=8,
        mlp_dim=8,
        num_heads=2,
        classifier="map",
        input_shape=(16, 16, 3),
    )
    for name in canonical_variables(model):
        assert canonical_name(name) == name


def test_table_is_read_in_both_directions():
    dialect = Dialect(
        "tiny",
        "patches.weight",
        (
            ("patches", "embedding"),
            ("old.{rest}", IGNORED),
            ("token", Token("cls", 1)),
            ("layers.{i}.kv_{kind}", Packed(f"{ATTENTION}key", f"{ATTENTION}value")),
            ("{tower}layers.{i}.up", f"{MLP}Dense_0"),
            ("{tower}layers.{i}.fc1", Alias(f"{MLP}Dense_0")),
        ),
        layout="pytorch",
        choices={"tower": ("", "model.")},
    )
    block = ATTENTION.format(i=1)
    arrays = {
        "embedding/kernel": np.arange(24.0).reshape(2, 2, 2, 3),
        "cls": np.arange(3.0).reshape(1, 1, 3),
        f"{block}key/kernel": np.arange(12.0).reshape(3, 2, 2),
        f"{block}value/kernel": np.arange(12.0).reshape(3, 2, 2) + 20,
        f"{MLP.format(i=1)}Dense_0/bias": np.arange(5.0),
    }
    tensors, left = dialect.write({**arrays, "more": np.ones(1)}, 2, Folder({}, tower="model."))
    assert set(left) == {"more"}
    assert set(tensors) == {
        "patches.weight",
        "token",
        "layers.1.kv_weight",
        "model.layers.1.up.bias",
    }
    assert tensors["token"].shape == (3,) and tensors["layers.1.kv_weight"].shape == (8, 3)
    # The alias, without the tower.
    tensors["layers.1.fc1.bias"] = tensors.pop("model.layers.1.up.bias")
    again = {}
    for name, value in tensors.items():
        lazy = LazyArray(value.shape, "float32", (name,), lambda value=value: value)
        again |= {path: array.read() for path, array in dialect.read(name, lazy, num_heads=2)}
    assert again.keys() == arrays.keys() and dialect.match("old.x") == (
        IGNORED,
        {"rest": "x", "kind": None},
    )
    for name, value in arrays.items():
        np.testing.assert_array_equal(again[name], value)
