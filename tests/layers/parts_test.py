"""Tests the options of blocks and models, mostly against an implementation in NumPy."""

import math

import numpy as np
import pytest

import keras_vit
from keras_vit import layers
from keras_vit.checkpoints.names import canonical_variables
from keras_vit.layers.rotary import rotary_table

from ..shared import random_images

BASE = {"num_heads": 2, "mlp_dim": 12}
ROTARY = {
    "dinov3": {"style": "half", "coordinates": "centered", "theta": 100.0},
    "eva02": {"style": "pairs", "coordinates": "index", "theta": 10000.0, "reference": 16},
    "pe": {
        "style": "pairs",
        "coordinates": "index",
        "theta": 10000.0,
        "order": "xy",
        "offset": 1.0,
    },
}
ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def randomize(model, seed=0):
    random = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign(
            0.4 * random.standard_normal(variable.shape) + variable.path.endswith("gamma")
        )


def weights_of(layer):
    return {v.path.partition("/")[2]: np.asarray(v, "float64") for v in layer.weights}


def norm(x, w, name, epsilon=1e-6):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return x * w[f"{name}/gamma"] + w[f"{name}/beta"]


def dense(x, w, name):
    return x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0.0)


def angles_of(kind, rows, columns, size):
    y, x = (axis.reshape(-1, 1).astype("float64") for axis in np.mgrid[:rows, :columns])
    k = np.arange(size // 4)
    if kind == "dinov3":
        y = 2 * (y + 0.5) / rows - 1
        x = 2 * (x + 0.5) / columns - 1
        periods = 100.0 ** (2 * k / (size / 2))
        return np.tile(np.concatenate([2 * np.pi * y / periods, 2 * np.pi * x / periods], -1), 2)
    frequencies = 10000.0 ** (-k / (size / 4))
    if kind == "eva02":
        parts = [y / rows * 16 * frequencies, x / columns * 16 * frequencies]
    else:
        parts = [(x + 1) * frequencies, (y + 1) * frequencies]
    return np.repeat(np.concatenate(parts, -1), 2, -1)


def turn(x, kind):
    if kind == "dinov3":
        half = x.shape[-1] // 2
        return np.concatenate([-x[..., half:], x[..., :half]], -1)
    return np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)


def block_in_numpy(tokens, w, heads, mlp="gelu_tanh", rotary=None, prefix=1, epsilon=1e-6):
    """Computes a Transformer block with NumPy. Norms, biases and scales that `w` does not contain
    are skipped."""
    x = norm(tokens, w, "norm_1", epsilon)
    q, k, v = (
        np.einsum("bnd,dhk->bhnk", x, w[f"attention/{part}/kernel"])
        + w.get(f"attention/{part}/bias", np.zeros((heads, 1)))[:, None]
        for part in ("query", "key", "value")
    )
    if "attention/query_norm/gamma" in w:
        q = norm(q, w, "attention/query_norm", epsilon)
        k = norm(k, w, "attention/key_norm", epsilon)
    if rotary:
        angles = angles_of(rotary, 2, 3, q.shape[-1])
        q, k = (
            np.concatenate(
                [
                    z[:, :, :prefix],
                    z[:, :, prefix:] * np.cos(angles)
                    + turn(z[:, :, prefix:], rotary) * np.sin(angles),
                ],
                2,
            )
            for z in (q, k)
        )
    scores = np.exp(q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1]))
    mixed = np.einsum("bhqn,bhnk->bqhk", scores / scores.sum(-1, keepdims=True), v)
    out = np.einsum("bqhk,hkd->bqd", mixed, w["attention/out/kernel"]) + w.get(
        "attention/out/bias", 0.0
    )
    tokens = tokens + out * w.get("layer_scale_1/scale", 1.0)
    x = norm(tokens, w, "norm_2", epsilon)
    hidden = dense(x, w, "mlp_1")
    if mlp == "swiglu":
        hidden = ACTIVATIONS["silu"](dense(x, w, "mlp_gate")) * hidden
    else:
        hidden = ACTIVATIONS[mlp](hidden)
    if "mlp_norm/gamma" in w:
        hidden = norm(hidden, w, "mlp_norm", epsilon)
    return tokens + dense(hidden, w, "mlp_2") * w.get("layer_scale_2/scale", 1.0)


PARTS = [
    {"mlp": "gelu"},
    {"mlp": "quick_gelu"},
    {"mlp": "swiglu"},
    {"mlp": "swiglu", "mlp_norm": True, "mlp_bias": False, "epsilon": 1e-2},
    {"attention_bias": "qv", "layer_scale": 0.1},
    {"attention_bias": "", "qk_norm": True, "epsilon": 1e-2},
    {"rotary": "dinov3", "qk_norm": True},
    {"rotary": "eva02", "attention_bias": "qvo"},
    {"rotary": "pe"},
]


@pytest.mark.parametrize("arguments", PARTS, ids=str)
def test_block_matches_numpy(arguments):
    rotary = arguments.get("rotary")
    options = {
        **arguments,
        **({"rotary": {**ROTARY[rotary], "grid": (2, 3), "prefix": 1}} if rotary else {}),
    }
    block = layers.TransformerBlock(**BASE, **options)
    tokens = np.random.default_rng(1).standard_normal((2, 7, 16))
    block.build(tokens.shape)
    randomize(block)
    given = {key: arguments[key] for key in ("mlp", "rotary", "epsilon") if key in arguments}
    expected = block_in_numpy(tokens, weights_of(block), 2, **given)
    np.testing.assert_allclose(
        np.asarray(block(tokens.astype("float32"))), expected, rtol=2e-4, atol=2e-4
    )
    first = layers.TransformerBlock(**BASE, **options, first_token_only=True, remat=True)
    first.build(tokens.shape)
    first.set_weights(block.get_weights())
    for training in (False, True):
        one = first(tokens.astype("float32"), training=training)
        np.testing.assert_allclose(np.asarray(one), expected[:, :1], rtol=2e-4, atol=2e-4)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", [*ROTARY, "plain"])
def test_attention_and_chunked_attention_match_scores(name, monkeypatch):
    monkeypatch.setattr("keras_vit.layers.attention.LONG_SEQUENCE", 1)
    monkeypatch.setattr("keras_vit.layers.attention.CHUNK", 3)
    rotary = {**ROTARY[name], "grid": (2, 3), "prefix": 1} if name in ROTARY else None
    attention = layers.attention.MultiHeadAttention(2, qk_norm=True, rotary=rotary)
    tokens = np.random.default_rng(1).standard_normal((2, 7, 16)).astype("float32")
    attention.build(tokens.shape)
    randomize(attention)
    scores = np.asarray(attention.scores_of(tokens))
    value = attention.value(tokens)
    expected = attention.out(np.einsum("bhqn,bnhk->bqhk", scores, value))
    np.testing.assert_allclose(np.asarray(attention(tokens)), np.asarray(expected), atol=2e-5)
    query = attention._positioned(attention.query(tokens), attention.query_norm)
    key = attention._positioned(attention.key(tokens), attention.key_norm)
    chunks = attention.out(attention._attend_in_chunks(query, key, value))
    np.testing.assert_allclose(np.asarray(chunks), np.asarray(expected), atol=2e-5)


def test_omitted_options_match_explicit_defaults_exactly():
    tokens = np.random.default_rng(1).standard_normal((2, 7, 16)).astype("float32")
    config = layers.TransformerBlock(**BASE).get_config()
    new = ("mlp", "mlp_norm", "mlp_bias", "attention_bias", "qk_norm", "rotary", "layer_scale")
    old = layers.TransformerBlock.from_config(
        {key: value for key, value in config.items() if key not in new}
    )
    explicit = layers.TransformerBlock(**BASE, mlp="gelu_tanh", attention_bias="qkvo")
    for block in (old, explicit):
        block.build(tokens.shape)
    randomize(old)
    explicit.set_weights(old.get_weights())
    np.testing.assert_array_equal(np.asarray(old(tokens)), np.asarray(explicit(tokens)))


MODELS = {
    "dinov3": {
        "position_embedding": "none",
        "num_registers": 2,
        "rotary": ROTARY["dinov3"],
        "layer_scale": 1.0,
        "attention_bias": "qvo",
        "mlp": "swiglu",
        "epsilon": 1e-5,
    },
    "clip": {"pre_norm": True, "patch_bias": False, "mlp": "quick_gelu", "epsilon": 1e-5},
    "dinov2": {"num_registers": 3, "mlp": "gelu", "layer_scale": 0.1},
    "gap": {"num_registers": 2, "classifier": "gap", "mlp": "gelu"},
}


def build(kind, **changes):
    sizes = {
        "patch_size": 4,
        "hidden_size": 16,
        "num_layers": 2,
        **BASE,
        "classes": 3,
        "input_shape": (8, 12, 3),
    }
    model = keras_vit.VisionTransformer(**{**sizes, **MODELS[kind], **changes})
    randomize(model)
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_model_matches_numpy(kind):
    model = build(kind)
    options = MODELS[kind]
    w = {
        f"{layer.name}/{name}": value
        for layer in model.layers
        for name, value in weights_of_layer(layer).items()
    }
    images = np.random.default_rng(2).uniform(-1, 1, (2, 8, 12, 3))
    x = images.reshape(2, 2, 4, 3, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 6, 48)
    x = dense(x, w, "embedding")
    if "class_token/cls" in w:
        x = np.concatenate([np.repeat(w["class_token/cls"], 2, 0), x], 1)
    x = x + w.get("position_embedding/pos_embedding", 0.0)
    tokens = int("class_token/cls" in w)
    if "register_tokens/register_tokens" in w:
        registers = np.repeat(w["register_tokens/register_tokens"], 2, 0)
        x = np.concatenate([x[:, :tokens], registers, x[:, tokens:]], 1)
    prefix = x.shape[1] - 6
    epsilon = options.get("epsilon", 1e-6)
    assert prefix == model.num_prefix_tokens == tokens + options.get("num_registers", 0)
    if options.get("pre_norm"):
        x = norm(x, w, "pre_norm", epsilon)
    for i in range(2):
        part = {k.partition("/")[2]: v for k, v in w.items() if k.startswith(f"encoderblock_{i}/")}
        rotary = "dinov3" if "rotary" in options else None
        x = block_in_numpy(x, part, 2, options.get("mlp", "gelu_tanh"), rotary, prefix, epsilon)
    x = norm(x, w, "encoder_norm", epsilon)
    pooled = x[:, prefix:].mean(1) if kind == "gap" else x[:, 0]
    np.testing.assert_allclose(
        np.asarray(model(images)), dense(pooled, w, "head"), rtol=3e-4, atol=3e-4
    )
    result = model.intermediates(images.astype("float32"), attention=True)
    np.testing.assert_allclose(np.asarray(result["encoded"]), x, rtol=3e-4, atol=3e-4)
    np.testing.assert_allclose(np.asarray(result["pre_logits"]), pooled, rtol=3e-4, atol=3e-4)


def weights_of_layer(layer):
    return {v.path.rpartition(f"{layer.name}/")[2]: np.asarray(v, "float64") for v in layer.weights}


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", MODELS)
def test_model_can_be_saved_and_inspected(kind, tmp_path):
    model = build(kind)
    images = random_images((2, 8, 12, 3), seed=2)
    model.save(tmp_path / "model.keras")
    again = keras_vit.load_keras_file(tmp_path / "model.keras")
    np.testing.assert_array_equal(np.asarray(again(images)), np.asarray(model(images)))
    keras_vit.checkpoints.save(model, tmp_path / "model.npz")
    other = build(kind)
    for variable in other.weights:
        variable.assign(np.zeros(variable.shape))
    keras_vit.checkpoints.load(other, tmp_path / "model.npz")
    np.testing.assert_array_equal(np.asarray(other(images)), np.asarray(model(images)))
    assert len(set(canonical_variables(model))) == len(model.weights)
    assert keras_vit.features(model, images, tokens="patch", grid=True).shape == (2, 2, 3, 16)
    assert keras_vit.inspection.attention_maps(model, images, upsample=False).shape == (2, 2, 3)
    assert keras_vit.inspection.attention_maps(
        model, images, "relevance", upsample=False
    ).shape == (2, 2, 3)
    assert keras_vit.inspection.position_similarity(model).shape == (2, 3, 2, 3)
    assert keras_vit.inspection.attention_distance(model, images).shape == (2, 2)


@pytest.mark.one_backend
def test_lora_trains_only_adapters_and_head():
    model = build("dinov3", qk_norm=True, mlp_norm=True)
    keras_vit.enable_lora(model, 2, ("key", "mlp_1"), write=lambda line: None)
    names = {variable.name for variable in model.trainable_variables}
    assert names == {"lora_kernel_a", "lora_kernel_b", "kernel", "bias"}
    assert len(model.trainable_variables) == 2 * 2 * 2 + 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mlp": "relu"}, "`mlp` must be one of .*Received: mlp='relu'"),
        ({"attention_bias": "abc"}, "letters of .*Received: biases='abc'"),
        ({"rotary": {"theta": 1.0}}, "`rotary` must contain `grid`"),
        ({"rotary": {"grid": (2, 3), "base": 1.0}}, "`rotary` must contain `grid`"),
        ({"rotary": {"grid": (2, 2)}}, "require 4 tokens"),
        (
            {"rotary": {"grid": (2, 3), "prefix": 1, "style": "thirds"}},
            "`style` must be one of half",
        ),
    ],
    ids=str,
)
def test_rejects_invalid_block_options(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.TransformerBlock(**BASE, **arguments).build((None, 7, 16))
    with pytest.raises(ValueError, match="a multiple of 4"):
        rotary_table(6, grid=(2, 3))
