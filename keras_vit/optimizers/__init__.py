"""Optimizers, schedules, clipping and averaging. Pure Keras: they run on every backend."""

from typing import Any

import keras

from keras_vit.optimizers.adamw import AdamW
from keras_vit.optimizers.base import DECAY_MASKS
from keras_vit.optimizers.clipping import clip_by_global_norm, ema_update, global_norm
from keras_vit.optimizers.schedules import DECAYS, Schedule
from keras_vit.optimizers.sgd import SGD

__all__ = [
    "DECAYS", "DECAY_MASKS", "OPTIMIZERS", "SGD", "AdamW", "Schedule", "clip_by_global_norm", "ema_update", "get",
    "global_norm",
]  # fmt: skip

OPTIMIZERS = {"adamw": AdamW, "sgd": SGD}
"""The classes of the optimizers by the names that `get` takes."""


def get(name: str, schedule: float | Schedule, **arguments: Any) -> keras.optimizers.Optimizer:
    """Returns an optimizer, not built, with the paper's constants.

    Args:
        name: "adamw", with betas of 0.9 and 0.999 and an epsilon of 1e-8; or "sgd", with a momentum of 0.9.
        schedule: a `Schedule`, or a learning rate.
        **arguments: `weight_decay`, `decay_mask`, `no_decay`, `layer_decay` and `momentum_dtype`; see `AdamW`.

    Raises:
        ValueError: the name is not known, or an argument is out of range.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"`name` must be one of {', '.join(OPTIMIZERS)}. Received: name={name!r}")
    return OPTIMIZERS[name](schedule, **arguments)
