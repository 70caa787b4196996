"""Validates configs."""

import math

from keras_vit.training import freezing
from keras_vit.training.engine import SHARDS

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
_CHOICES = {"precision": PRECISIONS, "shard": SHARDS, "export_model": ("best", "last")}
# The smallest values that fields may have.
_MINIMUM = {
    "batch_size": 1,
    "accumulate_steps": 1,
    "steps_per_call": 1,
    "log_every_steps": 1,
    "seed": 0,
    "checkpoint_every_steps": 0,
    "eval_every_steps": 0,
    "clip_norm": 0,
    "early_stop_evals": 0,
    "lora_rank": 0,
    "unfreeze_at_step": 0,
}


def validate_config(config, num_devices):
    """Raises a `ValueError` unless the training fields of a config are valid for `num_devices`
    devices."""
    for name, values in _CHOICES.items():
        if config[name] not in values:
            raise ValueError(
                f"`{name}` must be one of {str(values)[1:-1]}. Received: {name}={config[name]!r}"
            )
    for name, minimum in _MINIMUM.items():
        if not config[name] >= minimum:  # also rejects NaN
            raise ValueError(f"`{name}` must be {minimum} or more. Received: {name}={config[name]}")
    freezing.validate(config)
    if config.seed >= 2**31:
        raise ValueError(f"`seed` must be below 2**31. Received: seed={config.seed}")
    if config.early_stop_evals and not config.eval_every_steps:
        raise ValueError(
            "`early_stop_evals` requires `eval_every_steps`. Received: "
            f"early_stop_evals={config.early_stop_evals}, eval_every_steps=0"
        )
    if config.weights_channels and not config.weights:
        raise ValueError(
            "`weights_channels` requires `weights`. Received: "
            f"weights_channels={config.weights_channels!r}, weights=''"
        )
    if not 0 <= config.ema_decay < 1:
        raise ValueError(f"`ema_decay` must be in [0, 1). Received: ema_decay={config.ema_decay}")
    if config.batch_size % (num_devices * config.accumulate_steps):
        raise ValueError(
            f"`batch_size` must be divisible by {num_devices} replicas times "
            f"{config.accumulate_steps} micro-batches. Received: batch_size={config.batch_size}, "
            f"accumulate_steps={config.accumulate_steps}"
        )
    lengths = (config.total_steps, config.total_epochs)
    if min(lengths) != 0 or not 0 < max(lengths) < math.inf:  # also rejects NaN
        raise ValueError(
            "One of `total_steps` and `total_epochs` must be positive and finite, and the other "
            f"must be 0. Received: total_steps={config.total_steps}, "
            f"total_epochs={config.total_epochs}"
        )


def validate_evaluators(config, task, evaluators):
    """Raises a `ValueError` unless each name in `evals` has an evaluator and `best_metric` is a
    known metric."""
    missing = [name for name in config.evals if name not in evaluators]
    if missing:
        raise ValueError(
            "Every name in `evals` needs an evaluator: pass "
            "`evaluators=keras_vit.evaluation.get(config.evals)`. Received: "
            f"evals={tuple(config.evals)}, evaluators={tuple(evaluators)}"
        )
    known = list(task.evaluation_metrics)
    known += [f"{name}/{metric}" for name in config.evals for metric in evaluators[name].METRICS]
    if config.best_metric not in known:
        raise ValueError(
            f"`best_metric` must be one of {', '.join(known)}; evaluators in `evals` add more "
            f"metrics. Received: best_metric={config.best_metric!r}, evals={tuple(config.evals)}"
        )


def validate_length(config, total_steps, num_examples):
    """Raises a `ValueError` unless the warm-up and `unfreeze_at_step` end before the run."""
    warmup_steps = config.schedule.get("warmup_steps", 0)
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            f"`warmup_steps` must be in [0, {total_steps}): training takes {total_steps} steps of "
            f"{config.batch_size} images ({num_examples:,} training images). Use fewer warm-up "
            "steps (--config.schedule.warmup_steps) or smaller batches (--config.batch_size), or "
            f"train longer. Received: schedule.warmup_steps={warmup_steps}, "
            f"total_steps={total_steps}, batch_size={config.batch_size}"
        )
    if config.unfreeze_at_step >= total_steps:
        raise ValueError(
            f"`unfreeze_at_step` must be below {total_steps}, the number of steps; 0 never trains "
            f"the weights of `freeze`. Received: unfreeze_at_step={config.unfreeze_at_step}"
        )


def total_steps(config, num_examples):
    """Returns the number of training steps of a run, from `total_steps` or `total_epochs`."""
    return config.total_steps or max(
        1, round(config.total_epochs * num_examples / config.batch_size)
    )
