"""Some examples of a source, as a source."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.source import Source


def subset(source: Source, indices: Sequence[int] | np.ndarray) -> Source:
    """A source of some examples of another one, in the order of their indices.

    Args:
        source: a `Source` that can be read by index.
        indices: integers in [0, num_examples), 1 or more.

    Raises:
        ValueError: the source is read in order only, there are no indices, or one is out of range.
    """
    indices, read = np.asarray(indices), source.read
    if read is None:
        raise ValueError("Only a source with access by index has subsets. Received: one that is read in order")
    if indices.ndim != 1 or not len(indices) or indices.min() < 0 or indices.max() >= source.num_examples:
        raise ValueError(
            f"Indices must be of 0 to {source.num_examples - 1}, one or more. Received: {len(indices.ravel())} indices"
        )
    index_of = tf.constant(indices, tf.int64)
    return dataclasses.replace(
        source,
        read=lambda index: read(index_of[index]),
        num_examples=len(indices),
        name_of=lambda index: source.name_of(int(indices[index])),
        labels=None if source.labels is None else np.asarray(source.labels)[indices],
    )
