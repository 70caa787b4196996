"""Gradient clipping, and moving averages of weights."""

from collections.abc import Sequence

import keras
from keras import ops


def global_norm(gradients: Sequence[keras.KerasTensor | None]) -> keras.KerasTensor:
    """Returns the norm of all gradients as one vector, a float32 scalar. A gradient of None counts as 0."""
    squares = [ops.sum(ops.square(ops.cast(gradient, "float32"))) for gradient in gradients if gradient is not None]
    return ops.sqrt(sum(squares))


def clip_by_global_norm(
    gradients: Sequence[keras.KerasTensor | None], norm: float
) -> tuple[Sequence[keras.KerasTensor | None], keras.KerasTensor]:
    """Returns gradients scaled down to a global norm of at most `norm`, and their float32 norm before scaling.

    With data parallelism, call it after gradients are summed over replicas.

    Args:
        gradients: list of float tensors or None.
        norm: the largest norm, above 0; 0 for no clipping.

    Reference: fine-tuning in `vit_jax`: c * g / norm if the norm is c or more, without an epsilon.
    """
    if norm < 0:
        raise ValueError(f"`norm` must be above 0, or 0 for no clipping. Received: norm={norm}")
    before = global_norm(gradients)
    if not norm:
        return gradients, before
    # The factor is exactly 1.0 if nothing is clipped. A norm of NaN makes all gradients NaN.
    factor = ops.where(before < norm, 1.0, norm / before)
    return [None if g is None else ops.cast(factor, g.dtype) * g for g in gradients], before


def ema_update(old: keras.KerasTensor, new: keras.KerasTensor, decay: float) -> keras.KerasTensor:
    """Returns `decay * old + (1 - decay) * new`, the next exponential moving average, in the dtype of `old`.

    The average starts as a copy of the weight, so it needs no bias correction. `decay` is in [0, 1); 0.9999 in the
    paper.
    Reference: paper section 4.1, "Polyak averaging"; Polyak and Juditsky (1992).
    """
    # Add a small step to the average: with a decay near 1, the sum of two products is less accurate.
    return old + (1.0 - decay) * (ops.cast(new, old.dtype) - old)
