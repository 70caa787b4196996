"""What a task can see of the global batch, whose rows an engine may divide among devices."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator

import keras

# `MirroredStrategy` runs each replica in a separate thread.
_THREAD = threading.local()


@dataclasses.dataclass(frozen=True)
class GlobalBatch:
    """Access to the rows of all devices; by default, one device has the whole batch.

    Under `jit` on JAX, arrays are global although their rows are sharded, so the default applies.

    Attributes:
        gather: function that maps the rows of a device, `(n, ...)`, to the rows of all devices,
            `(N, ...)`, in the order of the devices. Its gradient is summed over the devices.
        device: index of the device, whose rows start at `device * n`.
    """

    gather: Callable[[keras.KerasTensor], keras.KerasTensor] = lambda rows: rows
    device: int | keras.KerasTensor = 0


@contextlib.contextmanager
def batch_scope(batch: GlobalBatch) -> Iterator[None]:
    """Makes `current_batch` return `batch` in this thread."""
    before = current_batch()
    _THREAD.batch = batch
    try:
        yield
    finally:
        _THREAD.batch = before


def current_batch() -> GlobalBatch:
    """Returns the `GlobalBatch` of this thread."""
    return getattr(_THREAD, "batch", GlobalBatch())
