"""Tests of rematerialization (`remat`), which recomputes the activations of a block."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.layers import compilation
from keras_vit.layers.dropout import StepSeeds, seed_scope

from ..shared import SIZES, random_images, to_numpy


def _model(remat):
    keras.utils.set_random_seed(0)
    sizes = {**SIZES, "patch_size": 2, "num_layers": 3}
    return keras_vit.VisionTransformer(
        **sizes, input_shape=(4, 6, 3), dropout=0.5, include_top=False, remat=remat
    )


def test_remat_preserves_outputs_and_dropout_draws():
    images = random_images((2, 4, 6, 3))
    key = ops.convert_to_tensor([1, 2], "uint32" if keras.backend.backend() == "jax" else "int32")

    def outputs(model):
        """Returns the outputs with and without dropout, and the number of seeds."""
        seeds = StepSeeds(key)
        with seed_scope(seeds):
            training = to_numpy(model(images, training=True))
        return (training, to_numpy(model(images))), seeds.count

    plain, plain_seeds = outputs(_model(remat=False))
    rematerialized, seeds = outputs(_model(remat=True))
    # Each of the three blocks draws at least one dropout mask, and so does the stem.
    assert seeds == plain_seeds > 3
    assert not np.allclose(plain[0], plain[1])
    for ours, theirs in zip(rematerialized, plain):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.one_backend
def test_recomputation_is_compiled_as_the_forward_pass():
    import tensorflow as tf

    scopes = []

    class Block(keras_vit.layers.TransformerBlock):
        def encode(self, tokens, **options):
            scopes.append((compilation.platform(), compilation.fused("plain")))
            return 2 * tokens

    block = Block(num_heads=2, mlp_dim=8, remat=True)
    tokens = tf.ones((1, 3, 4))
    with tf.GradientTape() as tape:
        tape.watch(tokens)
        with compilation.compiling_for("tpu", fuse=lambda function: f"fused {function}"):
            outputs = block(tokens, training=True)
    tape.gradient(outputs, tokens)
    assert scopes == [("tpu", "fused plain")] * 2
