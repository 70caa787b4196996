"""Learning-rate schedules and optimizers, by name. Pure Keras: they run on every backend."""

import math

import keras
from keras import ops

DECAYS = ("cosine", "linear", "constant")
OPTIMIZERS = ("adamw",)


@keras.saving.register_keras_serializable(package="keras_vit")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0, then a decay to the end of training.

    Update number s (from 0) uses rate(s), so with warm-up the first update has rate 0.

    Args:
        decay: "cosine" (to 0), "linear" (to `end`) or "constant".
        base: the rate after the warm-up.
        total_steps: the number of updates.
        warmup_steps: updates until `base` is reached; 0 for none.
        end: the rate that a linear decay ends at.

    Raises:
        ValueError: the decay is not known, or the steps are not 0 <= warmup_steps < total_steps.

    Reference: the original's `create_learning_rate_schedule`.
    """

    def __init__(self, decay, base, total_steps, warmup_steps=0, end=1e-5):
        super().__init__()
        if decay not in DECAYS:
            raise ValueError(f"`decay` must be one of {', '.join(DECAYS)}. Received: decay={decay!r}")
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                "The warm-up must be 0 or more steps and end before training does. "
                f"Received: warmup_steps={warmup_steps}, total_steps={total_steps}"
            )
        self.decay = decay
        self.base = base
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.end = end

    def __call__(self, step):
        step = ops.cast(step, "float32")
        progress = ops.clip((step - self.warmup_steps) / (self.total_steps - self.warmup_steps), 0.0, 1.0)
        if self.decay == "cosine":
            rate = self.base * 0.5 * (1.0 + ops.cos(math.pi * progress))
        elif self.decay == "linear":
            rate = self.end + (self.base - self.end) * (1.0 - progress)
        else:
            rate = self.base + 0.0 * progress
        if self.warmup_steps:
            rate = rate * ops.minimum(1.0, step / self.warmup_steps)
        return rate

    def get_config(self):
        names = ("decay", "base", "total_steps", "warmup_steps", "end")
        return {name: getattr(self, name) for name in names}


def make(name, schedule, *, weight_decay=0.0):
    """The optimizer called `name`.

    Args:
        name: "adamw": Adam with beta 0.9 and 0.999, epsilon 1e-8, and a decay that is multiplied by the rate.
        schedule: a `Schedule`, or a rate.
        weight_decay: the decay, before the multiplication by the rate; 0 for none.

    Returns:
        A Keras optimizer, not built.

    Raises:
        ValueError: the name is not known.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"`name` must be one of {', '.join(OPTIMIZERS)}. Received: name={name!r}")
    return keras.optimizers.AdamW(schedule, weight_decay=weight_decay, beta_1=0.9, beta_2=0.999, epsilon=1e-8)
