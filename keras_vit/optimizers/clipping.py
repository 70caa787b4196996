"""Clipping gradients by their global norm."""

from collections.abc import Sequence

import keras
from keras import ops


def global_norm(gradients: Sequence[keras.KerasTensor | None]) -> keras.KerasTensor:
    """The norm of all gradients as one vector: float32, a scalar. A gradient of None counts as 0."""
    squares = [ops.sum(ops.square(ops.cast(gradient, "float32"))) for gradient in gradients if gradient is not None]
    return ops.sqrt(sum(squares))


def clip_by_global_norm(
    gradients: Sequence[keras.KerasTensor | None], norm: float
) -> tuple[Sequence[keras.KerasTensor | None], keras.KerasTensor]:
    """Scales gradients down so that their global norm is at most `norm`.

    Under data parallelism it must come after the sum over replicas: the gradient of one replica has another norm.

    Args:
        gradients: list of float tensors, or None.
        norm: the largest norm, above 0; 0 for no clipping.

    Returns:
        `(gradients, global_norm)`: the list, and the norm before clipping, a float32 scalar.

    Raises:
        ValueError: the norm is negative.

    Reference: fine-tuning in `vit_jax`: g if its norm is below c, else c * g / norm, without an epsilon.
    """
    if norm < 0:
        raise ValueError(f"`norm` must be above 0, or 0 for no clipping. Received: norm={norm}")
    before = global_norm(gradients)
    if not norm:
        return gradients, before
    # Where nothing is clipped the factor is 1.0 exactly. A norm of NaN stays NaN in every gradient.
    factor = ops.where(before < norm, 1.0, norm / before)
    clipped = [None if g is None else ops.cast(factor, g.dtype) * g for g in gradients]
    return clipped, before
