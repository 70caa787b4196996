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

OPTIMIZERS = ("adamw", "sgd")
"""The names that `get` knows."""


def get(
    name: str,
    schedule: float | Schedule,
    *,
    weight_decay: float = 0.0,
    decay_mask: str = "all",
    no_decay: str = "",
    layer_decay: float = 1.0,
    momentum_dtype: str = "float32",
) -> keras.optimizers.Optimizer:
    """Returns an optimizer, not built, with the paper's constants.

    Args:
        name: "adamw", with beta 0.9 and 0.999 and epsilon 1e-8; or "sgd", with momentum 0.9.
        schedule: a `Schedule`, or a learning rate.
        weight_decay, decay_mask, no_decay: see `AdamW`. The paper's SGD has no weight decay.
        layer_decay, momentum_dtype: see `AdamW` and `SGD`.

    Raises:
        ValueError: the name is not known, or an argument is out of range.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"`name` must be one of {', '.join(OPTIMIZERS)}. Received: name={name!r}")
    shared: dict[str, Any] = {"layer_decay": layer_decay, "momentum_dtype": momentum_dtype}
    if name == "adamw":
        return AdamW(schedule, weight_decay=weight_decay, decay_mask=decay_mask, no_decay=no_decay, **shared)
    if weight_decay or decay_mask != "all" or no_decay:
        raise ValueError(
            "The paper's SGD has no weight decay: `weight_decay` must be 0, `decay_mask` all and `no_decay` empty. "
            f"Received: weight_decay={weight_decay}, decay_mask={decay_mask!r}, no_decay={no_decay!r}, name='sgd'"
        )
    return SGD(schedule, **shared)
