"""Tests of a model family that is defined in this file. It has rotary positions, SwiGLU and two
registers."""

import json
import re

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict
from safetensors.numpy import save_file

import keras_vit
from keras_vit import checkpoints, data, evaluation, families, inspection, recipes, training
from keras_vit.checkpoints.dialects.dialect import Dialect, Facts, Packed
from keras_vit.checkpoints.names import ATTENTION, BLOCK, MLP
from keras_vit.families import inference

from ..shared import random_images, randomize


def ToyViT(
    *,
    num_layers: int,
    hidden_size: int,
    mlp_dim: int,
    num_heads: int,
    input_shape: tuple[int, int, int] = (8, 8, 1),
    classes: int = 10,
    dropout: float = 0.0,
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
        dropout=dropout,
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
    if "register_tokens" not in shapes:
        return None
    arguments = inference.infer(shapes, facts)
    names = ("num_layers", "hidden_size", "mlp_dim", "num_heads", "classes")
    return {name: arguments[name] for name in names} | {
        "input_shape": (8, 8, shapes["embedding/kernel"][2])
    }


@pytest.fixture(autouse=True)
def registered():
    family = families.Family(
        ToyViT,
        sizes=TOY_SIZES.table,
        identity=("num_layers", "hidden_size"),
        infer=infer,
        dialects=(DIALECT,),
    )
    families.register(family)
    yield family
    families.FAMILIES.remove(family)


IMAGES = random_images((3, 8, 8, 1), seed=1)


@pytest.mark.full
def test_toy_family_trains_and_is_evaluated(tmp_path):
    config = ConfigDict(
        recipes.defaults(
            **families.model_config("Toy-S/2", dropout=0.1),
            batch_size=32,
            total_steps=2,
            log_every_steps=1,
            data=data.defaults(name="digits"),
            optimizer={"name": "adamw"},
            schedule={"base": 1e-3},
        )
    )
    assert config.architecture == "Toy-S/2" and config.model.theta == 100.0
    lines = []
    result = training.run(config, training.Workdir(tmp_path, config.to_dict()), write=lines.append)
    assert (
        any(line.startswith("step 2/2") for line in lines) and result.model.num_prefix_tokens == 3
    )
    metrics = evaluation.evaluate(result.model, ["top1"], result.inputs)
    assert metrics["top1/accuracy"] == pytest.approx(result.metrics["test/accuracy"], abs=1e-6)


def test_model_supports_features_attention_and_flops():
    model = randomize(Toy_S2())
    assert keras_vit.features(model, IMAGES).shape == (3, 16)
    assert keras_vit.features(model, IMAGES, tokens="patch").shape[1:] == (16, 16)
    (scores,) = inspection.attention_scores(model, IMAGES, layers=[2])
    assert scores.shape == (3, 2, 19, 19)
    # Count the multiply-accumulates of the patch embedding and the head. Then add the four
    # projections, the attention and the three MLP matrices of each block. The last block has only
    # one query, the class token's.
    tokens = 19
    hidden = 16
    mlp = 24
    products = 16 * 4 * hidden + 10 * hidden
    for queries in (tokens, 1):
        products += (
            2 * (tokens + queries) * hidden**2
            + 2 * queries * tokens * hidden
            + 3 * queries * hidden * mlp
        )
    assert keras_vit.flops(model) == pytest.approx(2 * products)


def test_loads_file_in_toy_format(tmp_path):
    model = randomize(Toy_S2())
    arrays = {
        name: np.asarray(value)
        for name, value in checkpoints.names.canonical_variables(model).items()
    }
    attention = "MultiHeadDotProductAttention_0"
    mlp = "MlpBlock_0/Dense_"
    file = {
        "stem.weight": arrays["embedding/kernel"].reshape(2, 2, 1, 16).transpose(3, 2, 0, 1),
        "stem.bias": arrays["embedding/bias"],
        "cls": arrays["cls"][0, 0],
        "registers": arrays["register_tokens"][0],
        "norm.weight": arrays["Transformer/encoder_norm/scale"],
        "norm.bias": arrays["Transformer/encoder_norm/bias"],
        "fc.weight": arrays["head/kernel"].T,
        "fc.bias": arrays["head/bias"],
    }
    for i in range(2):
        block = {
            n.split("/", 2)[2]: a
            for n, a in arrays.items()
            if n.startswith(f"Transformer/encoderblock_{i}/")
        }
        qkv = [
            (block[f"{attention}/{p}/kernel"], block[f"{attention}/{p}/bias"])
            for p in ("query", "key", "value")
        ]
        gated = [(block[f"{mlp}{p}/kernel"], block[f"{mlp}{p}/bias"]) for p in ("gate", "0")]
        for n in (1, 2):
            file[f"layer{i}.n{n}.weight"] = block[f"LayerNorm_{n - 1}/scale"]
            file[f"layer{i}.n{n}.bias"] = block[f"LayerNorm_{n - 1}/bias"]
        file[f"layer{i}.qkv.weight"] = np.concatenate(
            [kernel.reshape(16, 16).T for kernel, _ in qkv]
        )
        file[f"layer{i}.qkv.bias"] = np.concatenate([bias.reshape(16) for _, bias in qkv])
        file[f"layer{i}.proj.weight"] = block[f"{attention}/out/kernel"].reshape(16, 16).T
        file[f"layer{i}.proj.bias"] = block[f"{attention}/out/bias"]
        file[f"layer{i}.w12.weight"] = np.concatenate([kernel.T for kernel, _ in gated])
        file[f"layer{i}.w12.bias"] = np.concatenate([bias for _, bias in gated])
        file[f"layer{i}.w3.weight"] = block[f"{mlp}1/kernel"].T
        file[f"layer{i}.w3.bias"] = block[f"{mlp}1/bias"]
    path = tmp_path / "toy.safetensors"
    save_file({name: np.ascontiguousarray(array) for name, array in file.items()}, path)
    for again in (keras_vit.from_pretrained(path), Toy_S2(weights=path)):
        np.testing.assert_array_equal(again(IMAGES), model(IMAGES))
    with pytest.raises(ValueError, match=r"it is Toy-S/2 \(.*is VisionTransformer"):
        vit = keras_vit.VisionTransformer(
            patch_size=2,
            num_layers=2,
            hidden_size=16,
            mlp_dim=24,
            num_heads=2,
            input_shape=(8, 8, 1),
        )
        checkpoints.load(vit, path)
    assert not re.search("unused|new", str(checkpoints.load(model, path)))


def test_toy_family_is_saved_and_restored(tmp_path):
    model = randomize(Toy_S2(theta=50.0))
    checkpoints.save(model, tmp_path / "toy.npz")
    again = keras_vit.from_pretrained(tmp_path / "toy.npz")
    np.testing.assert_array_equal(again(IMAGES), model(IMAGES))
    with pytest.raises(ValueError, match="a model with rotary={'theta': 50.0}"):
        checkpoints.load(Toy_S2(), tmp_path / "toy.npz")
    model.save(tmp_path / "toy.keras")
    np.testing.assert_array_equal(
        keras.saving.load_model(tmp_path / "toy.keras")(IMAGES), model(IMAGES)
    )


@pytest.mark.full
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports need TensorFlow")
def test_toy_family_export_matches_outputs(tmp_path):
    import tensorflow as tf

    from keras_vit import export

    model = randomize(Toy_S2())
    export.saved_model(model, str(tmp_path), version=1, signatures=("tensor",))
    outputs = tf.saved_model.load(str(tmp_path / "1")).signatures["tensor"](
        images=tf.constant(IMAGES)
    )
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(model(IMAGES)))
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)
    card = json.loads((tmp_path / "1/assets.extra/model_card.json").read_text())
    assert card["architecture"]["description"].startswith("Toy-S/2 (")
    np.testing.assert_array_equal(export.load(tmp_path / "1")(IMAGES), model(IMAGES))
