"""Batches of mixed images: mixup and CutMix, whose partners are found in the global batch.

Example i of a batch of B is mixed with example i - 1, the last one being before the first ("roll", as in big_vision),
or with example B - 1 - i ("reverse", as in the first code of the JAX reference `vit_jax`); see `order.partner_of`. One
weight holds for the whole batch. A worker that holds a part of the batch reads the partners of its part too, so that
the result does not depend on the number of workers or replicas.

References: Zhang et al., "mixup: Beyond Empirical Risk Minimization"; Yun et al., "CutMix".
"""

import tensorflow as tf


def mixing_weight(alpha, seed, form="roll"):
    """The share of an example in its mixture: one draw of Beta(alpha, alpha).

    Args:
        alpha: above 0.
        seed: int tensor `(2,)`.
        form: with "roll" the larger of b and 1 - b, as in big_vision; with "reverse" b itself.

    Returns:
        float32 scalar in [0, 1], [0.5, 1] for "roll".
    """
    # The ratio of two gamma draws is a Beta draw; in float64, because a small alpha makes both of them tiny.
    draws = tf.random.stateless_gamma([2], seed, alpha=tf.constant(alpha, tf.float64), dtype=tf.float64)
    share = tf.math.divide_no_nan(draws[0], draws[0] + draws[1])
    # Both draws round to nothing only where Beta has its mass at the ends.
    share = tf.where(draws[0] + draws[1] > 0, share, 1.0)
    share = tf.maximum(share, 1 - share) if form == "roll" else share
    return tf.cast(share, tf.float32)


def mixup(values, partners, share):
    """`share` of each value and the rest of its partner: float32, any shape."""
    return share * values + (1.0 - share) * partners


def cutmix(images, partners, share, seed):
    """Images with one window of their partners, the same in the whole batch.

    Args:
        images, partners: `(B, H, W, C)`.
        share: the share of the area that stays, before the window is cut at the edge of the image.
        seed: int tensor `(2,)`; places the middle of the window anywhere in the image.

    Returns:
        The images, and the share of the area that stayed, float32.
    """
    height, width = images.shape[1], images.shape[2]
    y, x = tf.unstack(tf.random.stateless_uniform([2], seed) * [float(height), float(width)])
    half_height, half_width = [tf.sqrt(1.0 - share) * side / 2 for side in (height, width)]
    rows, columns = tf.range(height, dtype=tf.float32) + 0.5, tf.range(width, dtype=tf.float32) + 0.5
    inside = (tf.abs(rows - y) < half_height)[:, None] & (tf.abs(columns - x) < half_width)[None, :]
    mixed = tf.where(inside[None, :, :, None], partners, images)
    return mixed, 1.0 - tf.reduce_mean(tf.cast(inside, tf.float32))
