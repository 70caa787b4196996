"""Converts arrays between the layouts of PyTorch and Keras: the order and number of their axes."""

import re

from keras_vit.checkpoints import names

# The arrays of shape `(1, N, D)`, some of whose axes a file may omit.
_TOKENS = (
    names.CLASS_TOKEN,
    names.DISTILLATION_TOKEN,
    names.POSITIONS,
    "register_tokens",
    "MAPHead_0/probe",
)


def to_keras(path, kind, array, num_heads):
    """Returns the complete canonical name of a PyTorch array, and the array in the Keras layout."""
    # Complete the name, and move the input axes in front of the output axis.
    if kind == "bias":
        path += "/bias"
    elif kind == "weight":
        path += "/scale" if len(array.shape) == 1 else "/kernel"
        if len(array.shape) == 2:
            array = array.transpose()
        elif len(array.shape) == 4:
            array = array.transpose((2, 3, 1, 0))
    elif path in _TOKENS and 0 < len(array.shape) < 3:
        array = array.reshape((1,) * (3 - len(array.shape)) + array.shape)
    # Separate the axis of attention heads. A width that `num_heads` does not divide is rejected
    # later.
    module = path.rpartition("/")[0]
    if num_heads and array.shape:
        if module.endswith(("/query", "/key", "/value")) and not array.shape[-1] % num_heads:
            *rest, units = array.shape
            array = array.reshape((*rest, num_heads, units // num_heads))
        elif path.endswith("Attention_0/out/kernel") and not array.shape[0] % num_heads:
            units, *rest = array.shape
            array = array.reshape((num_heads, units // num_heads, *rest))
    return path, array


def to_pytorch(name, array):
    """Transposes an array to PyTorch's layout, and merges its axis of attention heads."""
    if name.endswith("_0/out/kernel"):
        return array.reshape(-1, array.shape[-1]).T
    if re.search("/(query|key|value)/", name):
        array = array.reshape(-1 if array.ndim == 2 else (len(array), -1))
    if name.endswith("/kernel"):
        return array.T if array.ndim == 2 else array.transpose(3, 2, 0, 1)
    return array


def without_axes_of_one(name, array):
    """Removes the leading axes of length 1 from some arrays.

    These are heads `(1, 1, in, classes)` and arrays of a GroupNorm `(1, 1, 1, C)`.
    """
    axes = 0
    if name == names.HEAD[0]:
        axes = 2
    elif names.is_group_norm(name):
        axes = 3
    has_axes = len(array.shape) == 4 and array.shape[:axes] == (1,) * axes
    return array.reshape(array.shape[axes:]) if has_axes else array
