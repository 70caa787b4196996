"""Compares the position embeddings in appendix D.4 of the paper with a NumPy implementation."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.names import canonical_variables
from keras_vit.inspection import attention_scores

from ..shared import SIZES, random_images

MODEL = {**SIZES, "num_layers": 3, "classes": 3}
VARIANTS = [
    {"position_embedding": "none"},
    {"position_embedding": "learned2d"},
    {"position_embedding": "relative"},
    {"position_embedding_at": "every_layer"},
    {"position_embedding_at": "every_layer_shared"},
    {
        "position_embedding": "learned2d",
        "position_embedding_at": "every_layer",
        "classifier": "gap",
    },
    {"position_embedding": "learned2d", "position_embedding_at": "every_layer_shared"},
    {"position_embedding": "relative", "classifier": "gap"},
]


def build(seed=0, **arguments):
    model = keras_vit.VisionTransformer(**{**MODEL, "input_shape": (8, 12, 3), **arguments})
    random = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign(
            0.3 * random.standard_normal(variable.shape)
            + variable.path.endswith(("gamma", "scale"))
        )
    return model


def images(count=2):
    return random_images((count, 8, 12, 3), seed=1)


def norm(x, weights, name):
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return (x - x.mean(-1, keepdims=True)) / deviation * weights[f"{name}/scale"] + weights[
        f"{name}/bias"
    ]


def positions_of(weights, name, tokens):
    """Returns position embeddings of shape `(tokens, D)`, or 0 if the model adds none."""
    if f"{name}/pos_embedding" in weights:
        return weights[f"{name}/pos_embedding"][0]
    if f"{name}/x_embedding" not in weights:
        return 0.0
    x = weights[f"{name}/x_embedding"][0]
    y = weights[f"{name}/y_embedding"][0]
    rows = [np.concatenate([x[column], y[row]]) for row in range(2) for column in range(3)]
    return np.array(rows if tokens == 6 else [weights[f"{name}/class_embedding"][0, 0], *rows])


def logits_in_numpy(model, batch, every_layer):
    """Computes the logits.

    With `every_layer=""`, position embeddings are added once, after the stem. With "own", every
    layer has its own position embeddings. With "shared", all layers use the same position
    embeddings.
    """
    weights = {
        name: np.asarray(value, "float64") for name, value in canonical_variables(model).items()
    }
    patches = (
        batch.reshape(-1, 2, 4, 3, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(len(batch), 6, 48)
    )
    x = patches @ weights["embedding/kernel"] + weights["embedding/bias"]
    if "cls" in weights:
        x = np.concatenate([np.repeat(weights["cls"], len(batch), 0), x], 1)
    n = x.shape[1]
    for layer in range(3):
        block = f"Transformer/encoderblock_{layer}"
        if layer == 0 or every_layer == "shared":
            x = x + positions_of(weights, "Transformer/posembed_input", n)
        elif every_layer == "own":
            x = x + positions_of(weights, f"{block}/posembed_input", n)
        attention = f"{block}/MultiHeadDotProductAttention_0"
        y = norm(x, weights, f"{block}/LayerNorm_0")
        q, k, v = (
            np.einsum("bnd,dhk->bhnk", y, weights[f"{attention}/{part}/kernel"])
            + weights[f"{attention}/{part}/bias"][:, None]
            for part in ("query", "key", "value")
        )
        scores = np.einsum("bhqd,bhkd->bhqk", q, k)
        if f"{attention}/relative_embedding" in weights:
            table = weights[f"{attention}/relative_embedding"]
            for i in range(n):
                for j in range(n):
                    scores[:, :, i, j] += q[:, :, i] @ table[i - j + n - 1]
        scores = np.exp(scores / np.sqrt(4))
        mixed = np.einsum("bhqk,bhkd->bqhd", scores / scores.sum(-1, keepdims=True), v)
        x = (
            x
            + np.einsum("bqhk,hkd->bqd", mixed, weights[f"{attention}/out/kernel"])
            + weights[f"{attention}/out/bias"]
        )
        mlp = f"{block}/MlpBlock_0"
        y = (
            norm(x, weights, f"{block}/LayerNorm_1") @ weights[f"{mlp}/Dense_0/kernel"]
            + weights[f"{mlp}/Dense_0/bias"]
        )
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + y @ weights[f"{mlp}/Dense_1/kernel"] + weights[f"{mlp}/Dense_1/bias"]
    x = norm(x, weights, "Transformer/encoder_norm")
    x = x[:, 0] if "cls" in weights else x.mean(1)
    return x @ weights["head/kernel"] + weights["head/bias"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(
            arguments, marks=() if index in (2, 6) else pytest.mark.one_backend, id=str(arguments)
        )
        for index, arguments in enumerate(VARIANTS)
    ],
)
def test_logits_match_numpy(arguments):
    model = build(**arguments)
    every_layer = {"every_layer": "own", "every_layer_shared": "shared"}.get(
        arguments.get("position_embedding_at"), ""
    )
    expected = logits_in_numpy(model, images(), every_layer)
    np.testing.assert_allclose(np.asarray(model(images())), expected, rtol=2e-4, atol=2e-5)


def test_zero_relative_positions_match_plain_attention():
    relative = build(position_embedding="relative")
    none = build(position_embedding="none")
    values = {
        variable.path.partition("/")[0] + variable.path: variable for variable in none.weights
    }
    for variable in relative.weights:
        key = variable.path.partition("/")[0] + variable.path
        variable.assign(values[key] if key in values else np.zeros(variable.shape))
    assert len(relative.weights) == len(none.weights) + 3
    np.testing.assert_array_equal(np.asarray(relative(images())), np.asarray(none(images())))


@pytest.mark.one_backend
def test_without_positions_patch_order_does_not_matter():
    batch = images()
    mirrored = np.concatenate([batch[:, 4:], batch[:, :4]], 1)  # swap the two rows of patches
    for variant, same in (("none", True), ("relative", False), ("learned2d", False)):
        model = build(position_embedding=variant)
        difference = np.abs(np.asarray(model(batch)) - np.asarray(model(mirrored))).max()
        assert (difference < 1e-5) == same, variant


@pytest.mark.one_backend
@pytest.mark.parametrize("arguments", [VARIANTS[2], VARIANTS[3], VARIANTS[6]], ids=str)
def test_position_variants_are_restored_from_keras_file(arguments, tmp_path):
    model = build(**arguments)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(np.asarray(model(images())), np.asarray(again(images())))


@pytest.mark.one_backend
@pytest.mark.parametrize("arguments", [VARIANTS[2], VARIANTS[3], VARIANTS[6]], ids=str)
def test_features_and_attention_match_the_model(arguments):
    model = build(**arguments)
    headless = keras.Model(model.input, model.layers[-1].input)
    pooled = keras_vit.features(model, images(), layers=[1, -1], tokens="class")[1]
    np.testing.assert_allclose(pooled, np.asarray(headless(images())), atol=1e-5)
    scores = attention_scores(model, images())
    assert scores.shape == (3, 2, 2, 7, 7)
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=1e-5)
    # Recompute the scores of the last block from its input tokens.
    tokens = keras_vit.features(model, images(), layers=2, tokens="all", norm=False)
    block = model.get_layer("encoderblock_2")
    if arguments.get("position_embedding_at") == "every_layer":
        tokens = model.get_layer("position_embedding_2")(tokens)
    elif "position_embedding_at" in arguments:
        tokens = model.get_layer("position_embedding")(tokens)
    x = block.norm_1(tokens)
    expected = block.attention.scores(block.attention.query(x), block.attention.key(x))
    np.testing.assert_allclose(scores[2], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"position_embedding_at": "head"},
            "one of stem, .*Received: .*'head'",
        ),
        (
            {"position_embedding": "relative", "position_embedding_at": "every_layer"},
            "must be stem unless",
        ),
        (
            {"class_token_position": False, "position_embedding_at": "every_layer"},
            "unless every token has a learned",
        ),
        ({"position_embedding": "learned2d", "hidden_size": 9, "num_heads": 3}, "must be even"),
    ],
)
def test_rejects_invalid_position_embeddings(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
