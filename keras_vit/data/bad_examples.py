"""Examples that cannot be read: which they are, how many, and when there are too many to go on."""

import itertools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data import examples, order
from keras_vit.data.failures import FINE, FailureLog
from keras_vit.data.lanes import evaluation_order
from keras_vit.data.options import Options
from keras_vit.data.sources import Source

log = logging.getLogger(__name__)

NAMED = 10  # with their reason; of the others only how many
TRANSIENT = "transient: it could not be read twice, and can be read now"


class BadExamples:
    """Counts and names what came with a weight of 0 although it has a right answer.

    Every failure counts once in each epoch. What can be read when it is looked at again is transient.

    Args:
        source: the `Source` of the batches.
        batch_size: examples in a batch, over all hosts.
        seed: the seed of the training batches; for evaluation, -1.
        max_share: the share of the source that may be bad in one epoch, in [0, 1]; more end the run.
        num_hosts, host_index: as for the batches.
        warn: a function of a line that names one.
        failures: the `FailureLog` of the batches. Without it, an example of a source without access by index is known
            by its position in the training order alone, and one that has no right answer counts as bad there.
        counts: what `counts` was when the run was saved that is resumed.
        options: the resolved `Options` of the batches, instead of their fields.
        **fields: fields of `Options`.

    Attributes:
        count: failures so far.
        transient: how many of them could be read afterwards.
        counts: `(count, transient, epoch, count of the epoch)`, plain integers.
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int,
        seed: int = -1,
        max_share: float = 0.01,
        num_hosts: int = 1,
        host_index: int = 0,
        warn: Callable[[str], object] = log.warning,
        failures: FailureLog | None = None,
        counts: Sequence[int] = (0, 0, 0, 0),
        options: Options | None = None,
        **fields: Any,
    ) -> None:
        if not 0 <= max_share <= 1:
            raise ValueError(f"The share of bad examples is between 0 and 1. Received: max_share={max_share}")
        self._source, self._batch_size, self._seed, self._max_share = source, batch_size, seed, max_share
        self._options, self._warn = options or Options(**fields).resolve(source), warn
        self._slots = order.host_slice(batch_size, num_hosts, host_index)
        crop = self._options.eval_crop if seed < 0 else self._options.train_crop
        shape = self._options.image_shape(source) if crop == "none" else None
        self._failures, self._decode = failures, decoder(source, self._options, shape)
        self._evaluation_order = evaluation_order(source, batch_size) if seed < 0 else None
        self.count, self.transient, self._epoch, self._epoch_count = counts
        self._named: set[str] = set()
        self._next_line = 2 * NAMED

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.count, self.transient, self._epoch, self._epoch_count

    def update(self, step: int, weights: np.ndarray) -> int:
        """Takes the weights of the batch of one step, `(B,)`; returns how many bad examples are in it.

        Raises:
            ValueError: more than `max_share` of the source is bad in this epoch.
        """
        rows = np.flatnonzero(np.asarray(weights) == 0)
        positions = [step * self._batch_size + self._slots[int(row)] for row in rows]
        if self._failures is not None and positions:
            indices = self._failures.pop(positions).tolist()
        else:
            indices = [self._index(position) for position in positions]
        bad = [(position, index) for position, index in zip(positions, indices) if index != FINE]
        return sum(self._count(position, index) for position, index in bad)

    def _index(self, position):
        """Which example it is; `FINE` for what only fills up a batch."""
        if self._seed < 0:
            return self._evaluation_order[position] if position < self._source.num_examples else FINE
        if self._source.read is None:
            return position
        position = tf.constant(position, tf.int64)
        return int(order.index_at(position, self._source.num_examples, self._seed)[1])

    def _count(self, position, index):
        """Counts an example unless it only has no right answer; 1 if it counts."""
        name, reason = self._describe(position, index)
        if not reason:
            return 0
        epoch = position // self._source.num_examples if self._seed >= 0 else 0
        if epoch != self._epoch:
            self._epoch, self._epoch_count = epoch, 0
        self.count += 1
        self.transient += reason == TRANSIENT
        self._epoch_count += 1
        self._warn_of(name, reason)
        self.check_share(self._epoch_count, f", the last one {name}: {reason}")
        return 1

    def check_share(self, count: int, last: str = "") -> None:
        """Raises a `ValueError` if this many bad examples of one epoch, of this host or of all, are more than
        `max_share` of the source."""
        if count > self._max_share * self._source.num_examples:
            raise ValueError(
                f"More than {100 * self._max_share:g} % of {self._source.num_examples} examples are bad; "
                "keras-vit verify-data lists them, and `max_bad_share` allows more. "
                f"Received: {count} bad examples in one epoch{last}"
            )

    def _describe(self, position, index):
        """The name of an example, and why it is bad; "" for one that is good and only has no right answer."""
        if self._source.read is not None:
            _, labels, reason = examine(self._source, index, self._decode)
            failed = self._failures is not None or np.size(labels)
            return self._source.name_of(index), reason or (TRANSIENT if failed else "")
        if self._failures is None and self._seed >= 0:
            return f"the example at position {position} of the training order", "cannot be read"
        return self._source.name_of(index), "cannot be read"

    def _warn_of(self, name, reason):
        if name not in self._named and len(self._named) < NAMED:
            self._named.add(name)
            self._warn(f"bad example {self.count}, counted with weight 0: {name}: {reason}")
        elif self.count >= self._next_line:
            self._warn(f"{self.count} bad examples so far, {self.transient} of them transient")
            self._next_line = 2 * self.count


def sum_counts(counts_of_hosts: Sequence[Sequence[int]]) -> tuple[int, int, int, int]:
    """The `BadExamples.counts` of all hosts together, of the newest epoch in which any of them has a failure."""
    newest = max(epoch for _, _, epoch, _ in counts_of_hosts)
    count, transient = (sum(counts[place] for counts in counts_of_hosts) for place in (0, 1))
    return count, transient, newest, sum(of_epoch for *_, epoch, of_epoch in counts_of_hosts if epoch == newest)


def examine(source, index, decode, record=None):
    """Reads and decodes one example.

    Args:
        source: a `Source`.
        index: which example.
        decode: what `decoder` returns.
        record: its record, of a source without access by index.

    Returns:
        `(stored, labels, reason)`: the bytes of the image, `None` where they cannot be read; the labels, integers, none
        where they cannot be read; and why the example is bad, or "".
    """
    stored, labels = None, np.zeros([0], np.int64)
    try:
        example = source.read(tf.constant(index, tf.int64)) if record is None else source.shards.parse(record)
        image, labels = example["image"].numpy(), example["label"].numpy()
        stored = image if isinstance(image, bytes) else b"".join(image) if image.dtype == object else image.tobytes()
        if not stored:
            return stored, labels, "the file is empty"
        decode(example["image"])
        if np.any((labels < 0) | (labels >= len(source.class_names))):
            return stored, labels, f"the label is not in 0 to {len(source.class_names) - 1}: {labels}"
    except tf.errors.OpError as error:
        return stored, labels, _first_line(error.message)
    return stored, labels, ""


def labels_of(source: Source, indices: np.ndarray) -> np.ndarray:
    """The labels of examples whose images may be broken.

    Args:
        source: a `Source`; of one that is read in order, the shards of these examples are read for it.
        indices: of the examples, ascending, int64 `(N,)`.

    Returns:
        int64 `(N,)`; -1 for a label that cannot be read, and for none or several of them.
    """
    if source.labels is not None:
        return np.asarray(source.labels)[indices]
    records = itertools.repeat(None) if source.shards is None else source.shards.records(indices)
    labels = np.full(len(indices), -1)
    for place, (index, record) in enumerate(zip(indices.tolist(), records)):
        _, label, _ = examine(source, index, lambda image: None, record)
        if np.ndim(label) == 0:
            labels[place] = label
    return labels


def decoder(source, options, shape=None):
    """A function that decodes an image of a source, of a shape if one is given, as one graph.

    Called eagerly, every function within would be traced anew for every image.
    """
    spec = source.image_spec
    decode = lambda image: tf.shape(examples.decode_pixels(image, source, options, shape=shape)[0])  # noqa: E731
    return tf.function(decode, input_signature=[tf.TensorSpec(spec.shape, spec.dtype)], autograph=False)


def _first_line(message):
    """The reason in an error of TensorFlow, without the functions and the lines of code that it came through."""
    text = re.sub(r"\{\{\w+ [^}]*\}\}", " ", message)
    lines = [line.strip() for line in text.splitlines()]
    # "Graph execution error:", "Detected at node ... (most recent call last):", stack frames, and then the reason.
    stack = ("Graph execution error", "Detected at node", "File ", "<stack traces", "Stack trace", "[[")
    reasons = [line for line in lines if line and not line.startswith(stack)]
    text = reasons[0].split(" [Op:")[0] if reasons else "it cannot be decoded"
    return " ".join(text.removeprefix("assertion failed: ").split())[:300]
