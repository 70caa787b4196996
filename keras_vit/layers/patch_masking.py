"""Corrupts patch embeddings for masked patch prediction."""

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.layers.dropout import current_seeds

# Fractions of the corrupted patches that are masked and replaced. The others stay unchanged.
MASKED_SHARE = 0.8
REPLACED_SHARE = 0.1


@serializable
class PatchMasking(BaseLayer):
    """Corrupts a fraction of the patch embeddings `(B, N, D)`; N must be static.

    The layer also returns a mask `(B, N)`, which is 1 for corrupted patches.

    In every image, 80 % of the corrupted patches become the learned mask embedding, 10 % become
    another patch of the same image, and 10 % stay unchanged. These numbers are rounded to whole
    patches.

    Inside `layers.dropout.seed_scope`, the layer uses the seeds of the scope in training and
    evaluation. Outside, it uses Keras' seed counter in training and corrupts nothing in evaluation.
    In training, the corrupted patches are drawn for each image. In evaluation, all images share one
    draw, so that results do not depend on the batch size or the number of devices.

    Args:
        rate: fraction of the patches to corrupt, in (0, 1]; at least one patch is corrupted.

    Reference: paper appendix B.1.2, which does not specify whether the fraction is exact, where the
        replacement patch comes from, or how the mask embedding is initialized. This layer
        initializes it from a normal distribution with standard deviation 0.02.
    """

    def __init__(self, rate=0.5, **kwargs):
        super().__init__(**kwargs)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
            raise ValueError(f"`rate` must be a number in (0, 1]. Received: rate={rate!r}")
        self._keep_arguments(locals())
        self.seed_generator = keras.random.SeedGenerator()

    def build(self, input_shape):
        self.mask_embedding = self.add_normal_weight("mask_embedding", (1, 1, input_shape[2]))

    def call(self, tokens, training=False):
        seeds = current_seeds()
        batch = ops.shape(tokens)[0]
        patches = tokens.shape[1]
        if seeds is None and not training:
            return tokens, ops.zeros((batch, patches), self.compute_dtype)
        seeds = seeds or self.seed_generator
        corrupted, masked, replaced = masking_counts(patches, self.rate)
        rows = batch if training else 1
        # Rank random numbers to get exact counts. The patches of the lowest ranks are masked, the
        # next ones replaced.
        order = ops.argsort(
            keras.random.uniform((rows, patches), dtype="float32", seed=seeds), axis=1
        )
        rank = ops.broadcast_to(ops.argsort(order, axis=1), (batch, patches))
        others = _other_patches(tokens, rows, seeds)
        is_replaced = (rank >= masked)[..., None] & (rank < masked + replaced)[..., None]
        tokens = ops.where(is_replaced, others, tokens)
        mask = ops.cast(self.mask_embedding, self.compute_dtype)
        tokens = ops.where((rank < masked)[..., None], mask, tokens)
        return tokens, ops.cast(rank < corrupted, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape, input_shape[:2]


def _other_patches(tokens, rows, seeds):
    """Returns a random other patch of the same image for each patch, `(B, N, D)`.

    `rows` is the number of draws: B, or 1 for the same draw in all images.
    """
    patches = tokens.shape[1]
    step = keras.random.uniform((rows, patches), 0, patches - 1, dtype="float32", seed=seeds)
    # A float32 draw may round up to the upper bound of its range.
    step = 1 + ops.minimum(ops.cast(ops.floor(step), "int32"), patches - 2)
    other = (ops.arange(patches, dtype="int32")[None] + step) % patches
    other = ops.broadcast_to(other, (ops.shape(tokens)[0], patches))
    return ops.take_along_axis(tokens, other[..., None], axis=1)


def masking_counts(patches, rate):
    """Returns the numbers of corrupted (in total), masked and replaced patches of an image."""
    corrupted = max(1, round(patches * rate))
    masked = round(corrupted * MASKED_SHARE)
    replaced = round(corrupted * REPLACED_SHARE)
    return corrupted, masked, replaced
