"""A checkpoint of the TensorFlow engine, read on another backend."""

import contextlib

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from keras_vit.training.engine import CorruptCheckpointError

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


class CheckpointReader:
    """Reads what `TensorFlowEngine.save` wrote by the names of `state_files`; needs no model.

    Args:
        path: as for `Engine.save`.

    Raises:
        CorruptCheckpointError: the files are damaged.
        OSError: they cannot be read now; a `FileNotFoundError` where one is missing.
    """

    def __init__(self, path):
        with _explained():
            self._reader = tf.train.load_checkpoint(str(path))
            self._shapes = self._reader.get_variable_to_shape_map()
            graph = self._reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(graph)
        attributes = [attribute for node in graph.nodes for attribute in node.attributes]
        self._keys = {attribute.full_name: attribute.checkpoint_key for attribute in attributes}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def has(self, name):
        """Whether there is an array of this name."""
        return self._key(name) in self._shapes

    def check(self, name, shape):
        """Raises a `ValueError` unless there is an array of this name and shape."""
        stored = self._shapes.get(self._key(name))
        if stored is None or tuple(stored) != tuple(shape):
            raise ValueError(
                f"The checkpoint is of another model: it must have {name!r} of shape {tuple(shape)}. Received: {stored}"
            )

    def read(self, name, shape, index=()):
        """A part of an array, `index` being a tuple of slices; () for the whole."""
        with _explained():
            return self._reader.get_tensor(self._key(name))[tuple(index)]

    def _key(self, name):
        group, number, path = name.split("/", 2)
        if group == "statistics":  # by name: a model's variables have no numbers there
            return self._keys.get(path)
        if group == "slots" and number == "0":
            return f"optimizer/_iterations{_SUFFIX}"
        folder = {"weights": "optimizer/_trainable_variables", "slots": "optimizer/_variables"}.get(group, group)
        return f"{path if group == 'scaling' else f'{folder}/{number}'}{_SUFFIX}"


# In messages of errors that have no type of their own: of the index, of the graph of objects, and of headers.
_DAMAGE = ("sstable", "Checksum does not match", "failed to seek to header", "file is corrupt")


def read_error(error):
    """The exception to raise for what TensorFlow says of a checkpoint that it could not read.

    Its reader of checkpoints raises plain `OpError`s, of which only the message tells what happened.
    """
    reason = str(getattr(error, "message", error)).split("\n")[0][:200]
    damages = (tf.errors.DataLossError, tf.errors.OutOfRangeError, IndexError)
    if isinstance(error, damages) or any(words in reason for words in _DAMAGE):
        return CorruptCheckpointError(reason)
    if isinstance(error, tf.errors.NotFoundError) or "No such file" in reason:
        return FileNotFoundError(reason)
    return OSError(reason) if isinstance(error, tf.errors.OpError) else ValueError(reason)


@contextlib.contextmanager
def _explained():
    try:
        yield
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
        raise read_error(error) from error
