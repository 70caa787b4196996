"""Tests of models with 1, 4 or 12 input channels."""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import random_images, randomize_head

TRANSFORMER = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 16}
MODELS = {
    "ViT": lambda **a: keras_vit.VisionTransformer(patch_size=8, **TRANSFORMER, **a),
    "hybrid": lambda **a: keras_vit.VisionTransformer(
        patch_size=1, resnet_blocks=(1,), **TRANSFORMER, **a
    ),
    "BiT": lambda **a: keras_vit.BiTResNet(depth=26, **a),
}


@pytest.mark.parametrize(
    "name, channels",
    [
        ("ViT", 4),
        pytest.param("hybrid", 1, marks=pytest.mark.one_backend),
        pytest.param("BiT", 12, marks=(pytest.mark.one_backend, pytest.mark.full)),
        *(
            pytest.param(n, c, marks=(pytest.mark.one_backend, pytest.mark.slow))
            for n in MODELS
            for c in (1, 4, 12)
            if (n, c) not in {("ViT", 4), ("hybrid", 1), ("BiT", 12)}
        ),
    ],
)
def test_model_trains_with_other_channel_counts(name, channels):
    model = MODELS[name](input_shape=(32, 48, channels), classes=3)
    assert model.input_shape == (None, 32, 48, channels)
    images = random_images((2, 32, 48, channels))
    # A zero head would pass no gradient to the layers below.
    randomize_head(model)
    model.compile(
        keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    first = next(w for w in model.trainable_weights if w.path.endswith("kernel"))
    before = keras.ops.convert_to_numpy(first)
    history = model.fit(images, np.array([0, 2]), batch_size=2, verbose=0, shuffle=False).history
    assert np.isfinite(history["loss"]).all()
    change = keras.ops.convert_to_numpy(first) - before
    assert np.abs(change).max() > 0 and first.shape[-2] in (channels, 64 * channels)
