"""Measures the memory of a run, and explains errors of devices without enough memory."""

import contextlib
import sys

from keras_vit.terminal import first_line

_ADVICE = (
    "A device is out of memory. Set accumulate_steps=8 to split the batch into micro-batches, or "
    "remat=True to recompute activations; both change results only by rounding, dropout "
    "masks and the batches of BatchNorm. "
    "Set precision='mixed_bfloat16' or halve batch_size to halve the size of activations. "
    "With weights to start from, freeze='backbone' or lora_rank=8 trains fewer weights."
)


@contextlib.contextmanager
def explained_errors():
    """Converts an out-of-memory error of a device to a `ValueError` with advice."""
    try:
        yield
    except Exception as error:
        reason = first_line(getattr(error, "message", error))
        if "ResourceExhausted" in type(error).__name__ or "RESOURCE_EXHAUSTED" in reason:
            raise ValueError(f"{_ADVICE} Received: {reason}") from error
        raise


def process_peak_memory():
    """Returns the peak memory of this process in bytes; 0 on Windows, where it is unknown."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes, Linux KiB
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
