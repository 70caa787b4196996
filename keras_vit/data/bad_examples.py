"""Examples that cannot be read: which they are, how many, and when there are too many to go on."""

import logging

import numpy as np
import tensorflow as tf

from keras_vit.data import examples, order
from keras_vit.data.options import Options

log = logging.getLogger(__name__)

NAMED = 10


class BadExamples:
    """Counts and names what came with a weight of 0.

    Args:
        source: the `Source` of the batches.
        batch_size: examples in a batch, over all hosts.
        seed: the seed of the training batches; for evaluation, -1.
        max_share: the share of the source that may be bad, in [0, 1]; more end the run.
        num_hosts, host_index: as for the batches.
        warn: a function of a line that names one.
        options: the resolved `Options` of the batches, instead of their fields.
        **fields: fields of `Options`.

    Attributes:
        count: how many different examples were found bad.
    """

    def __init__(
        self,
        source,
        *,
        batch_size,
        seed=-1,
        max_share=0.01,
        num_hosts=1,
        host_index=0,
        warn=log.warning,
        options=None,
        **fields,
    ):
        if not 0 <= max_share <= 1:
            raise ValueError(f"The share of bad examples is between 0 and 1. Received: max_share={max_share}")
        self._source, self._batch_size, self._seed, self._max_share = source, batch_size, seed, max_share
        self._options, self._warn = options or Options(**fields).resolve(source), warn
        self._first_slot = order.host_slice(batch_size, num_hosts, host_index).start
        self._reasons = {}
        self._next_line = 2 * NAMED

    @property
    def count(self):
        return sum(1 for reason in self._reasons.values() if reason)

    def update(self, step, weights):
        """Takes the weights of the batch of one step, `(B,)`; returns how many bad examples are in it.

        Raises:
            ValueError: more than `max_share` of the source is bad.
        """
        bad = 0
        for slot in np.flatnonzero(np.asarray(weights) == 0):
            index = self._index(step * self._batch_size + self._first_slot + int(slot))
            if index is None:
                continue
            if index not in self._reasons:
                self._reasons[index] = self._reason(index)
                if self._reasons[index]:
                    self._warn_of(index)
            bad += bool(self._reasons[index])
        return bad

    def _index(self, position):
        """Which example it is; `None` for what only fills up a batch."""
        if self._seed < 0:
            return position if position < self._source.num_examples else None
        if self._source.read is None:
            # Shuffled through a buffer: known by its position alone.
            return position
        position = tf.constant(position, tf.int64)
        return int(order.index_at(position, self._source.num_examples, self._seed)[1])

    def _reason(self, index):
        """Why an example is bad; "" for one that is good and only has no right answer."""
        if self._source.read is None:
            return "cannot be read"
        return examine(self._source, index, self._options)[2]

    def _warn_of(self, index):
        count, total = self.count, self._source.num_examples
        if count <= NAMED:
            ordered = self._source.read is not None or self._seed < 0
            name = self._source.name_of(index) if ordered else f"the example at position {index} of the training order"
            self._warn(f"bad example {count}, counted with weight 0: {name}: {self._reasons[index]}")
        elif count >= self._next_line:
            self._warn(f"{count} bad examples so far")
            self._next_line *= 2
        if count > self._max_share * total:
            raise ValueError(
                f"More than {100 * self._max_share:g} % of {total} examples are bad; experiments/verify_data.py lists "
                f"them, and `max_bad_share` allows more. Received: {count} bad examples, the last one "
                f"{self._source.name_of(index)}: {self._reasons[index]}"
            )


def examine(source, index, options, example=None):
    """Reads and decodes one example.

    Args:
        source: a `Source`.
        index: which example.
        options: resolved `Options`.
        example: the example, of a source without access by index.

    Returns:
        `(stored, labels, reason)`: the bytes of the image, `None` where they cannot be read; the labels, integers, none
        where they cannot be read; and why the example is bad, or "".
    """
    stored, labels = None, np.zeros([0], np.int64)
    try:
        example = example or source.read(tf.constant(index, tf.int64))
        image, labels = example["image"].numpy(), example["label"].numpy()
        stored = image if isinstance(image, bytes) else b"".join(image) if image.dtype == object else image.tobytes()
        if not stored:
            return stored, labels, "the file is empty"
        examples.decode_pixels(example["image"], source, options)
        if np.any((labels < 0) | (labels >= len(source.class_names))):
            return stored, labels, f"the label is not in 0 to {len(source.class_names) - 1}: {labels}"
    except tf.errors.OpError as error:
        return stored, labels, _first_line(error.message)
    return stored, labels, ""


def _first_line(message):
    # "{{function_node ...}} assertion failed: [...] [Op:Name]" and the like.
    text = message.split("}} ", 1)[-1].split(" [Op:")[0]
    return " ".join(text.removeprefix("assertion failed: ").split())[:300]
