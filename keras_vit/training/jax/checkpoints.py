"""The state of a run in files: every host writes and reads what its own devices hold."""

import dataclasses

import jax
import numpy as np
from jax.experimental import multihost_utils

from keras_vit import files
from keras_vit.training import state_files


def names(model, optimizer, state):
    """The names of the arrays of a `State`, by its fields."""
    return state_files.state_names(model, optimizer, averaged=bool(state.averages), scaled=bool(state.scaling))


def save(path, state, names, host_index=0, num_hosts=1):
    """Writes this host's part of a state.

    Of several hosts, none begins before all are there, or goes on before all have written.

    Args:
        path: what the names of the files begin with.
        state: a `State` on the devices.
        names: see `names`.
        host_index, num_hosts: which host this is, and of how many.

    Raises:
        OSError: the file cannot be written, on this host or another.
    """

    def pieces():
        for field, field_names in names.items():
            for name, array in zip(field_names, getattr(state, field)):
                for shard in array.addressable_shards:
                    if shard.replica_id == 0:  # of equal parts on several devices, one is written
                        start = tuple(s.indices(n)[0] for s, n in zip(shard.index, array.shape))
                        yield name, None if shard.data.shape == array.shape else start, np.asarray(shard.data)

    if num_hosts == 1:
        state_files.write_state(path, pieces())
        return
    multihost_utils.sync_global_devices(f"begin {path}")
    failure = None
    try:
        state_files.write_state(path, pieces(), host_index, num_hosts)
    except OSError as error:
        failure = error
    failed = multihost_utils.process_allgather(np.array([failure is not None])).ravel()
    if failed.any():
        raise failure or OSError(f"host {failed.argmax()} could not write its part")


def restore(path, state, shardings, names):
    """Reads a state, whatever devices it was written by, and on which backend.

    Args:
        path: what the names of the files begin with.
        state: a `State` of arrays of the expected shapes and dtypes.
        shardings: the `State` of their shardings.
        names: see `names`.

    Returns:
        `(state, backend)`: the `State`, on the devices, and the name of the backend that wrote it. What the files need
        not have stays as it is: the states of Keras' random generators, which TensorFlow does not write, and the scale
        of a loss that was not scaled.

    Raises:
        CorruptCheckpointError: the files are damaged.
        ValueError: they are those of another model.
        OSError: they cannot be read now; a `FileNotFoundError` where one is missing.
    """
    backend = "tensorflow" if files.exists(f"{path}.index") else "jax"
    fields = {}
    with _open(path, backend) as reader:
        expected = {
            field: list(zip(field_names, getattr(state, field), getattr(shardings, field), strict=True))
            for field, field_names in names.items()
        }
        for name, array, _ in [each for arrays in expected.values() for each in arrays]:
            if not _is_optional(name, array) or reader.has(name):
                reader.check(name, array.shape)

        def read(name, array, sharding):
            if _is_optional(name, array) and not reader.has(name):
                return array

            def part(index):
                return np.asarray(reader.read(name, array.shape, index), array.dtype)

            return jax.make_array_from_callback(array.shape, sharding, part)

        for field, arrays in expected.items():
            fields[field] = [read(*each) for each in arrays]
    return dataclasses.replace(state, **fields), backend


def _open(path, backend):
    if backend == "jax":
        return state_files.StateReader(path)
    from keras_vit.training.tensorflow.checkpoint_reader import CheckpointReader

    return CheckpointReader(path)


def _is_optional(name, array):
    """Whether a checkpoint may lack an array: a random generator's state, or the loss scale."""
    generator = name.startswith("statistics/") and not jax.numpy.issubdtype(array.dtype, jax.numpy.floating)
    return generator or name.startswith("scaling/")
