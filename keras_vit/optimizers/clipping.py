"""Gradient clipping and exponential moving averages (EMA) of weights."""

from collections.abc import Sequence

from keras import KerasTensor, ops


def global_norm(gradients: Sequence[KerasTensor | None]) -> KerasTensor:
    """Returns the L2 norm over all gradients as a float32 scalar; ignores gradients that are
    None."""
    squares = [
        ops.sum(ops.square(ops.cast(gradient, "float32")))
        for gradient in gradients
        if gradient is not None
    ]
    return ops.sqrt(sum(squares))


def clip_by_global_norm(
    gradients: Sequence[KerasTensor | None], norm: float
) -> tuple[Sequence[KerasTensor | None], KerasTensor]:
    """Scales gradients down to a global norm of at most `norm`.

    With data parallelism, sum the gradients over replicas first.

    Args:
        gradients: list of float tensors; elements may be None.
        norm: maximum global norm, 0 or more; 0 turns clipping off.

    Returns: `(gradients, before)`: the clipped gradients, and their global norm before clipping, a
        float32 scalar.

    Raises:
        ValueError: `norm` is negative.

    Reference: the fine-tuning code of `vit_jax`, which multiplies by `norm / before` without an
        epsilon.
    """
    factor, before = clip_factor(gradients, norm)
    if factor is None:
        return gradients, before
    return [None if g is None else ops.cast(factor, g.dtype) * g for g in gradients], before


def clip_factor(gradients, norm):
    """Returns `(factor, before)` as for `clip_by_global_norm`; the factor is None without
    clipping."""
    if norm < 0:
        raise ValueError(f"`norm` must be 0 or more. Received: norm={norm}")
    before = global_norm(gradients)
    if not norm:
        return None, before
    # If `before` is below `norm`, the factor is exactly 1.0. If `before` is NaN, all gradients
    # become NaN.
    return ops.where(before < norm, 1.0, norm / before), before


def ema_update(old: KerasTensor, new: KerasTensor, decay: float) -> KerasTensor:
    """Returns the next exponential moving average, `decay * old + (1 - decay) * new`, in the dtype
    of `old`.

    There is no bias correction, so initialize the average with a copy of the weight. `decay` is in
    [0, 1); the paper uses 0.9999.

    Reference: paper section 4.1, "Polyak averaging"; Polyak and Juditsky (1992).
    """
    # For a decay near 1, adding a small increment is more accurate than adding the two products.
    return old + (1.0 - decay) * (ops.cast(new, old.dtype) - old)
