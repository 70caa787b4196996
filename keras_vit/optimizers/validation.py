"""Checks of arguments that several optimizers take."""


def check_rate(name, value):
    """Raises a `ValueError` unless the value is in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={value}")


def check_layer_decay(layer_decay):
    """Raises a `ValueError` unless the value is in (0, 1]."""
    if not 0 < layer_decay <= 1:
        raise ValueError(
            f"`layer_decay` must be in (0, 1], 1 for the same rate everywhere. Received: layer_decay={layer_decay}"
        )


def check_momentum_dtype(dtype):
    """Raises a `ValueError` unless the dtype is float32 or bfloat16."""
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"`momentum_dtype` must be float32 or bfloat16. Received: momentum_dtype={dtype!r}")
