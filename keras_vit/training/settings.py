"""Checks of a config's own fields, and what follows from them."""

import tensorflow as tf

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def check(config, strategy):
    """Raises a `ValueError` unless a run can be made of the fields of a config under a strategy."""
    if config.precision not in PRECISIONS:
        raise ValueError(
            f"`precision` must be one of {', '.join(PRECISIONS)}. Received: precision={config.precision!r}"
        )
    for names, least in (
        (("batch_size", "accumulate_steps", "steps_per_call", "log_every_steps"), 1),
        (("seed", "checkpoint_every_steps", "eval_every_steps", "clip_norm"), 0),
    ):
        for name in names:
            if config[name] < least:
                raise ValueError(f"`{name}` must be {least} or more. Received: {name}={config[name]}")
    if not 0 <= config.ema_decay < 1:
        raise ValueError(f"`ema_decay` must be in [0, 1). Received: ema_decay={config.ema_decay}")
    if config.xla and isinstance(strategy, tf.distribute.TPUStrategy):
        raise ValueError("On a TPU everything is compiled, and `xla` must be False. Received: xla=True")
    replicas = strategy.num_replicas_in_sync
    parts = replicas * config.accumulate_steps
    if config.batch_size % parts:
        raise ValueError(
            f"The batch must divide among {replicas} replicas, and there into {config.accumulate_steps} parts. "
            f"Received: batch_size={config.batch_size}, accumulate_steps={config.accumulate_steps}"
        )
    if (config.total_steps > 0) == (config.total_epochs > 0):
        raise ValueError(
            "One of `total_steps` and `total_epochs` must be more than 0, the other 0. "
            f"Received: total_steps={config.total_steps}, total_epochs={config.total_epochs}"
        )


def total_steps(config, num_examples):
    """The steps of a run, from `total_steps` or `total_epochs`."""
    return config.total_steps or max(1, round(config.total_epochs * num_examples / config.batch_size))
