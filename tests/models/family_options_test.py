"""Tests of models with the options of other families: registers, rotary positions and pre-norms."""

import functools

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.names import canonical_variables

from ..numpy_reference import (
    ROTARY,
    dense,
    layer_norm,
    prepend,
    rotate,
    to_patches,
    transformer_block,
    weights_of,
    weights_of_model,
)
from ..shared import images_for, randomize_around_unit_norms, to_numpy

# On images of this shape, the grid has 2 x 3 patches.
MODEL = {
    "input_shape": (8, 12, 3),
    "patch_size": 4,
    "num_layers": 2,
    "hidden_size": 16,
    "mlp_dim": 12,
    "num_heads": 2,
    "classes": 3,
}
OPTIONS = {
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
each_family = pytest.mark.parametrize("family", OPTIONS)


def build(family, **changes):
    model = keras_vit.VisionTransformer(**{**MODEL, **OPTIONS[family], **changes})
    return randomize_around_unit_norms(model, 0.4)


def embed_in_numpy(images, weights):
    """Returns the tokens of the first block: the class token, the registers and the patches."""
    x = dense(to_patches(images, 4), weights, "embedding")
    class_tokens = 0
    if "class_token/cls" in weights:
        class_tokens = 1
        x = prepend(weights["class_token/cls"], x)
    x = x + weights.get("position_embedding/pos_embedding", 0.0)
    if "register_tokens/register_tokens" in weights:
        patches = x[:, class_tokens:]
        registers_and_patches = prepend(weights["register_tokens/register_tokens"], patches)
        x = np.concatenate([x[:, :class_tokens], registers_and_patches], axis=1)
    return x


@each_family
def test_model_matches_numpy(family):
    model = build(family)
    options = OPTIONS[family]
    epsilon = options.get("epsilon", 1e-6)
    weights = weights_of_model(model)
    images = images_for(model, seed=2)
    x = embed_in_numpy(images.astype("float64"), weights)
    prefix = x.shape[1] - 6
    assert prefix == model.num_prefix_tokens
    if options.get("pre_norm"):
        x = layer_norm(x, weights, "pre_norm", epsilon)
    rotation = None
    if "rotary" in options:
        rotation = functools.partial(rotate, family=family, grid=(2, 3), prefix=prefix)
    for i in range(2):
        block = weights_of(model.get_layer(f"encoderblock_{i}"))
        x = transformer_block(x, block, options.get("mlp", "gelu_tanh"), rotation, epsilon)
    encoded = layer_norm(x, weights, "encoder_norm", epsilon)
    pooled = encoded[:, prefix:].mean(1) if family == "gap" else encoded[:, 0]
    logits = dense(pooled, weights, "head")
    intermediates = model.intermediates(images, attention=True)
    for actual, expected in (
        (model(images), logits),
        (intermediates["encoded"], encoded),
        (intermediates["pre_logits"], pooled),
    ):
        np.testing.assert_allclose(to_numpy(actual), expected, rtol=3e-4, atol=3e-4)


@pytest.mark.one_backend
@each_family
def test_saved_files_preserve_outputs(family, tmp_path):
    model = build(family)
    images = images_for(model, seed=2)
    expected = to_numpy(model(images))
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.load_keras_file(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(loaded(images)), expected)
    keras_vit.checkpoints.save(model, tmp_path / "model.npz")
    other = build(family)
    for variable in other.weights:
        variable.assign(np.zeros(variable.shape))
    keras_vit.checkpoints.load(other, tmp_path / "model.npz")
    np.testing.assert_array_equal(to_numpy(other(images)), expected)


@pytest.mark.one_backend
@each_family
def test_canonical_names_are_unique(family):
    model = build(family)
    assert len(canonical_variables(model)) == len(model.weights)


@pytest.mark.one_backend
@each_family
def test_features_and_inspections_exclude_the_prefix_tokens(family):
    model = build(family)
    images = images_for(model, seed=2)
    assert keras_vit.features(model, images, tokens="patch", grid=True).shape == (2, 2, 3, 16)
    inspection = keras_vit.inspection
    assert inspection.attention_maps(model, images, upsample=False).shape == (2, 2, 3)
    relevance = inspection.attention_maps(model, images, "relevance", upsample=False)
    assert relevance.shape == (2, 2, 3)
    assert inspection.position_similarity(model).shape == (2, 3, 2, 3)
    assert inspection.attention_distance(model, images).shape == (2, 2)


@pytest.mark.one_backend
def test_lora_trains_only_adapters_and_head():
    model = build("dinov3", qk_norm=True, mlp_norm=True)
    keras_vit.enable_lora(model, 2, ("key", "mlp_1"), write=lambda line: None)
    names = {variable.name for variable in model.trainable_variables}
    assert names == {"lora_kernel_a", "lora_kernel_b", "kernel", "bias"}
    # Two blocks with two adapters of two matrices each, and the kernel and bias of the head.
    assert len(model.trainable_variables) == 2 * 2 * 2 + 2
