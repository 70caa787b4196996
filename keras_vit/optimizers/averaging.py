"""The average of weights over the steps of training (Polyak)."""

import keras
from keras import ops


def ema_update(old: keras.KerasTensor, new: keras.KerasTensor, decay: float) -> keras.KerasTensor:
    """`decay * old + (1 - decay) * new`: the next average of a weight.

    The average starts as a copy of the weight, so it needs no correction.

    Args:
        old: the average so far, float tensor.
        new: the weight after the update, of the same shape.
        decay: in [0, 1); 0.9999 in the paper.

    Returns:
        A tensor of the dtype and shape of `old`.

    Reference: paper section 4.1, "Polyak averaging"; Polyak and Juditsky (1992).
    """
    # A small step onto the average; the sum of two products would lose digits of a decay near 1.
    return old + (1.0 - decay) * (ops.cast(new, old.dtype) - old)
