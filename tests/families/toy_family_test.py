"""Tests that a family defined outside of the library has all features.

The family `ToyViT` has rotary positions, SwiGLU and two registers.
"""

import json

import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_vit
from keras_vit import checkpoints, evaluation, families
from keras_vit.checkpoints.dialects.dialect import Dialect, Folder, Packed
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.formats import open_checkpoint
from keras_vit.checkpoints.names import ATTENTION, BLOCK, MLP
from keras_vit.families import inference

from ..shared import assert_same_weights, random_images, randomize
from ..training import small_run


def ToyViT(
    *,
    num_layers: int,
    hidden_size: int,
    mlp_dim: int,
    num_heads: int,
    input_shape: tuple[int, int, int] = (8, 8, 1),
    classes: int = 10,
    theta: float = 100.0,
    preprocessing=None,
    weights=None,
    name: str = "toy",
):
    return keras_vit.VisionTransformer(
        patch_size=2,
        num_layers=num_layers,
        hidden_size=hidden_size,
        mlp_dim=mlp_dim,
        num_heads=num_heads,
        input_shape=input_shape,
        classes=classes,
        mlp="swiglu",
        rotary={"theta": theta},
        num_registers=2,
        position_embedding="none",
        preprocessing=preprocessing,
        weights=weights,
        name=name,
    )


TOY_SIZES = families.Sizes(ToyViT)
Toy_S2 = TOY_SIZES(
    "Toy-S/2", "a few parameters", num_layers=2, hidden_size=16, mlp_dim=24, num_heads=2
)
# The names of the arrays in files of the family.
DIALECT = Dialect(
    "toy",
    "stem.weight",
    (
        ("stem", "embedding"),
        ("cls", "cls"),
        ("registers", "register_tokens"),
        ("layer{i}.n1", f"{BLOCK}LayerNorm_0"),
        ("layer{i}.n2", f"{BLOCK}LayerNorm_1"),
        ("layer{i}.qkv", Packed(f"{ATTENTION}query", f"{ATTENTION}key", f"{ATTENTION}value")),
        ("layer{i}.proj", f"{ATTENTION}out"),
        ("layer{i}.w12", Packed(f"{MLP}Dense_gate", f"{MLP}Dense_0")),
        ("layer{i}.w3", f"{MLP}Dense_1"),
        ("norm", "Transformer/encoder_norm"),
        ("fc", "head"),
    ),
    layout="pytorch",
    facts=Facts(num_heads=2, rotary={"theta": 100.0}),
)


def infer(shapes, facts):
    """Returns the arguments of the model in a file."""
    if "register_tokens" not in shapes:
        return None
    inferred = inference.infer(shapes, facts)
    names = ("num_layers", "hidden_size", "mlp_dim", "num_heads", "classes")
    arguments = {name: inferred[name] for name in names}
    arguments["input_shape"] = (8, 8, shapes["embedding/kernel"][2])
    return arguments


@pytest.fixture(autouse=True)
def registered_family():
    family = families.Family(
        ToyViT,
        sizes=TOY_SIZES.table,
        identity=("num_layers", "hidden_size"),
        infer=infer,
        dialects=(DIALECT,),
    )
    families.register(family)
    yield
    families.FAMILIES.remove(family)


IMAGES = random_images((3, 8, 8, 1), seed=1)


@pytest.mark.full
def test_toy_family_trains_and_is_evaluated(tmp_path):
    fields = families.model_config("Toy-S/2")
    assert fields["architecture"] == "Toy-S/2" and "theta" in families.model_fields("Toy-S/2")
    fields |= {"batch_size": 32, "total_steps": 3}
    result = small_run.start("alone", tmp_path, **fields)
    assert result.model.num_prefix_tokens == 3
    metrics = evaluation.evaluate(result.model, ["top1"], result.inputs)
    assert metrics["top1/accuracy"] == pytest.approx(result.metrics["test/accuracy"], abs=1e-6)


def test_flops_count_all_parts():
    tokens = 19
    hidden = 16
    mlp = 24
    patch_embedding = 16 * 4 * hidden
    head = 10 * hidden
    multiply_accumulates = patch_embedding + head
    for queries in (tokens, 1):  # the last of the two blocks has one query, the class token's
        projections = 2 * (tokens + queries) * hidden**2
        attention = 2 * queries * tokens * hidden
        multiply_accumulates += projections + attention + 3 * queries * hidden * mlp
    assert keras_vit.flops(Toy_S2()) == pytest.approx(2 * multiply_accumulates)


@pytest.fixture
def toy_file(tmp_path):
    """Returns a model and the path of a file with its weights."""
    model = randomize(Toy_S2())
    checkpoints.save(model, tmp_path / "toy.npz")
    with open_checkpoint(tmp_path / "toy.npz") as checkpoint:
        arrays = {name: array.read() for name, array in checkpoint.arrays.items()}
    tensors, unsupported = DIALECT.write(arrays, 2, Folder({}))
    assert not unsupported
    save_file(tensors, tmp_path / "toy.safetensors")
    return model, tmp_path / "toy.safetensors"


def test_loads_file_in_toy_format(toy_file):
    model, path = toy_file
    assert_same_weights(keras_vit.from_pretrained(path), model)
    assert_same_weights(Toy_S2(weights=path), model)


def test_other_family_rejects_file_in_toy_format(toy_file):
    _, path = toy_file
    vit = keras_vit.VisionTransformer(**TOY_SIZES.table["Toy-S/2"], patch_size=2)
    with pytest.raises(ValueError, match=r"it is Toy-S/2 \(.*is VisionTransformer"):
        checkpoints.load(vit, path)


def test_toy_family_is_restored(tmp_path):
    model = randomize(Toy_S2(theta=50.0))
    checkpoints.save(model, tmp_path / "toy.npz")
    from_npz = keras_vit.from_pretrained(tmp_path / "toy.npz")
    np.testing.assert_array_equal(from_npz(IMAGES), model(IMAGES))
    with pytest.raises(ValueError, match="a model with rotary={'theta': 50.0}"):
        checkpoints.load(Toy_S2(), tmp_path / "toy.npz")


@pytest.mark.full
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports need TensorFlow")
def test_toy_family_export_matches_outputs(tmp_path):
    from keras_vit import export

    model = randomize(Toy_S2())
    export.saved_model(model, str(tmp_path), version=1)
    card = json.loads((tmp_path / "1/assets.extra/model_card.json").read_text())
    assert card["architecture"]["description"].startswith("Toy-S/2 (")
    np.testing.assert_array_equal(export.load(tmp_path / "1")(IMAGES), model(IMAGES))
