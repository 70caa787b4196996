"""Learning-rate schedules."""

import math
from typing import Any

import keras
from keras import ops

DECAYS = ("cosine", "linear", "rsqrt", "constant")
"""Allowed values of the argument `decay` of `Schedule`."""


@keras.saving.register_keras_serializable(package="keras_vit")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Learning-rate schedule: a linear warm-up from 0, then a decay or a constant rate.

    Steps count from 0, so with a warm-up the first update has a learning rate of 0.

    Args:
        decay: "cosine" (to 0), "linear" (to `end`), "rsqrt" (`base / sqrt(1 + t / timescale)` at t
            steps after the warm-up, independent of `total_steps`) or "constant".
        base: learning rate at the end of the warm-up, above 0.
        total_steps: number of training steps.
        warmup_steps: number of warm-up steps, less than `total_steps`; 0 for no warm-up.
        end: final learning rate of "linear", 0 or more; if `decay` is "linear", at most `base`.
        timescale: number of steps after the warm-up until "rsqrt" falls to `base / sqrt(2)`, above
            0.

    Raises:
        ValueError: `decay` is unknown, or another argument is out of range.

    Reference: `create_learning_rate_schedule` in `vit_jax`; for "rsqrt", Zhai et al., "Scaling
        Vision Transformers".
    """

    def __init__(
        self,
        decay: str,
        base: float,
        total_steps: int,
        warmup_steps: int = 0,
        end: float = 1e-5,
        timescale: float = 10_000,
    ) -> None:
        super().__init__()
        if decay not in DECAYS:
            raise ValueError(
                f"`decay` must be one of {', '.join(DECAYS)}. Received: decay={decay!r}"
            )
        if not (base > 0 and end >= 0 and timescale > 0):
            raise ValueError(
                "`base` and `timescale` must be positive and `end` must be non-negative. "
                f"Received: base={base}, end={end}, timescale={timescale}"
            )
        if decay == "linear" and end > base:
            raise ValueError(
                "`end` must be at most `base`, because a linear decay never raises the rate "
                f"(--config.schedule.end). Received: base={base}, end={end}"
            )
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                "`warmup_steps` must be 0 or more and less than `total_steps`. "
                f"Received: warmup_steps={warmup_steps}, total_steps={total_steps}"
            )
        self.decay = decay
        self.base = base
        self.end = end
        self.timescale = timescale
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps

    def __call__(self, step: int | keras.KerasTensor) -> keras.KerasTensor:
        step = ops.cast(step, "float32")
        progress = ops.clip(
            (step - self.warmup_steps) / (self.total_steps - self.warmup_steps), 0.0, 1.0
        )
        if self.decay == "cosine":
            rate = self.base * 0.5 * (1.0 + ops.cos(math.pi * progress))
        elif self.decay == "linear":
            rate = self.end + (self.base - self.end) * (1.0 - progress)
        elif self.decay == "rsqrt":
            rate = self.base / ops.sqrt(
                1.0 + ops.maximum(step - self.warmup_steps, 0.0) / self.timescale
            )
        else:
            rate = ops.full_like(step, self.base)
        if self.warmup_steps:
            rate = rate * ops.minimum(1.0, step / self.warmup_steps)
        return rate

    def get_config(self) -> dict[str, Any]:
        names = ("decay", "base", "total_steps", "warmup_steps", "end", "timescale")
        return {name: getattr(self, name) for name in names}
