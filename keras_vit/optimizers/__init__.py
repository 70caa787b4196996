"""Optimizers, learning-rate schedules, gradient clipping and EMA, written in `keras.ops` for every
backend."""

from typing import Any

import keras

from keras_vit.optimizers.adamw import AdamW
from keras_vit.optimizers.base import DECAY_MASKS
from keras_vit.optimizers.clipping import clip_by_global_norm, ema_update, global_norm
from keras_vit.optimizers.schedules import DECAYS, Schedule
from keras_vit.optimizers.sgd import SGD

__all__ = [
    "DECAYS",
    "DECAY_MASKS",
    "OPTIMIZERS",
    "SGD",
    "AdamW",
    "Schedule",
    "clip_by_global_norm",
    "ema_update",
    "get",
    "global_norm",
]

OPTIMIZERS = {"adamw": AdamW, "sgd": SGD}
"""Maps names, as passed to `get`, to optimizer classes."""


def get(name: str, schedule: float | Schedule, **arguments: Any) -> keras.optimizers.Optimizer:
    """Returns an unbuilt optimizer.

    Args:
        name: "adamw", with default betas of 0.9 and 0.999, or "sgd", with a default momentum of
            0.9, as in the paper.
        schedule: a constant learning rate or a `Schedule`.
        **arguments: other arguments of the class, such as `weight_decay` and `layer_decay`; see
            `AdamW` and `SGD`.

    Raises:
        ValueError: `name` is unknown, or an argument is out of range.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"`name` must be one of {', '.join(OPTIMIZERS)}. Received: name={name!r}")
    return OPTIMIZERS[name](schedule, **arguments)
