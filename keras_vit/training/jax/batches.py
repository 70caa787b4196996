"""Prefetches the batches of an `InputPipeline` to the devices."""

import collections
import concurrent.futures

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from keras_vit.training.jax.devices import AXIS


class DeviceBatches:
    """Iterates over an infinite `tf.data.Dataset` and prefetches `ahead` batches to the devices in
    a thread."""

    def __init__(self, mesh, dataset, ahead):
        self._mesh = mesh
        self._iterator = dataset.as_numpy_iterator()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "input")
        self._pending = collections.deque(self._thread.submit(self._read) for _ in range(ahead))

    def ready(self):
        """Returns whether the next batch is ready."""
        return self._pending[0].done()

    def __next__(self):
        batch = self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._read))
        return batch

    def _read(self):
        return put_batch(self._mesh, next(self._iterator))


def put_batch(mesh, batch):
    """Builds global arrays, sharded over the mesh, from this host's part of a batch."""
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    return tuple(
        jax.make_array_from_process_local_data(sharding, np.asarray(part)) for part in batch
    )
