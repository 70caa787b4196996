"""Counts and reports the unreadable examples of a run."""

import collections
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.data import examples, images
from keras_vit.data.sources.source import Source
from keras_vit.data.targets import Classes, Target

log = logging.getLogger(__name__)

NAMED = 10  # maximum number of bad examples that are logged; further bad examples are only counted


@dataclasses.dataclass(eq=False)
class BadExamples:
    """Counts the unreadable examples of a pipeline, which have weight 0, and logs the first few.

    With `sampling`, which repeats examples within an epoch, each host counts each example once per
    epoch.

    Args:
        source: the `Source` of the batches.
        failures: dict from steps to indices of unreadable examples; `train_batches` or
            `eval_batches` fills it.
        decode: function returned by `decoder`; it raises an error that explains why an example
            cannot be decoded.
        batch_size: number of examples in a batch, over all hosts.
        max_share: largest tolerated fraction of bad examples in an epoch, in [0, 1]. Unless it is
            0, one bad example per epoch is always tolerated.
        warn: function called with each log message.
        target: the `Target` of the batches; None for `Classes`.

    Attributes:
        count: number of bad examples on this host so far.
        counts: dict from epochs to numbers of bad examples on all hosts. A resumed run restores it
            unless `is_sampled`.
    """

    source: Source
    failures: dict[int, list[int]]
    decode: Any
    batch_size: int
    max_share: float = 0.01
    warn: Callable[[str], object] = log.warning
    target: Target | None = None
    count: int = dataclasses.field(default=0, init=False)
    counts: dict[int, int] = dataclasses.field(default_factory=collections.Counter, init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.max_share <= 1:
            raise ValueError(
                f"`max_bad_share` must be in [0, 1]. Received: max_bad_share={self.max_share}"
            )
        self._target = self.target or Classes(self.source)
        self._last = ""
        self._examined: set[int] = set()
        self._last_epoch: dict[int, int] = {}  # the last epoch that counted each bad example

    @property
    def is_sampled(self) -> bool:
        """Whether the batches have `sampling`."""
        return bool(getattr(self._target.options, "sampling", ""))

    def update(self, step: int) -> int:
        """Counts the bad examples in this host's share of a batch and returns their number; with
        `sampling`, the number of those that are new in this epoch.

        Raises:
            ValueError: a label is out of range.
        """
        indices = self.failures.pop(step, [])
        for index in indices:
            if index < 0:
                raise_wrong_label(self._target, wrong_label(index))
            self.count += 1
            if index in self._examined:
                continue
            self._examined.add(index)
            name = self.source.name_of(index)
            reason = self._reason(index)
            if len(self._examined) <= NAMED:
                self._last = f", such as {name}: {reason}"
                self.warn(f"bad example {self.count}, which gets weight 0: {name}: {reason}")
        if not self.is_sampled:
            return len(indices)
        epoch = self._epoch_of(step)
        new = {index for index in indices if self._last_epoch.get(index) != epoch}
        self._last_epoch |= dict.fromkeys(new, epoch)
        return len(new)

    def _epoch_of(self, step):
        """Returns the epoch in which a step starts."""
        return step * self.batch_size // self.source.num_examples

    def check(self, step: int, count: int, endless: bool = False) -> None:
        """Adds the `count` of a step's bad examples on all hosts; raises a `ValueError` if an epoch
        has too many.

        A step counts for the epoch in which it starts. If the batches are `endless`, as in
        training, the last step of an epoch may also contain examples of later epochs, and the limit
        includes the limits of these examples.
        """
        epoch = self._epoch_of(step)
        self.counts[epoch] += count
        allowed = self._endless_limit(epoch) if endless else self._limit
        if self.counts[epoch] > allowed:
            raise ValueError(
                f"More than {100 * self.max_share:g} % of {self.source.num_examples} examples "
                "are bad; --config.data.max_bad_share sets the limit, and `keras-vit verify-data` "
                f"lists all bad examples. Received: {self.counts[epoch]} bad examples in one "
                f"epoch{self._last}"
            )

    @property
    def _limit(self):
        # Tolerate one bad example even in a tiny dataset, unless `max_share` is 0.
        return max(self.max_share * self.source.num_examples, 1 if self.max_share else 0)

    def _endless_limit(self, epoch):
        """Returns the limit for the steps that start in an epoch of endless batches."""
        n = self.source.num_examples
        size = self.batch_size
        # These steps have the positions from `start` to `end`. `parts` are the numbers of these
        # positions in each epoch.
        start, end = (-(-e * n // size) * size for e in (epoch, epoch + 1))
        parts = (min(end, (e + 1) * n) - max(start, e * n) for e in range(epoch, -(-end // n)))
        return sum(min(self._limit, part) for part in parts)

    def _reason(self, index):
        """Returns why an example is bad."""
        if self.source.read is None:
            return "cannot be read"
        example, _, reason = examine(self.source, index, self.decode)
        if not reason and self._target.problem_of(example):
            raise_wrong_label(self._target, index)
        return reason or "failed twice, but is readable now"


def wrong_label(index):
    """Returns a negative number that stands for an example with a wrong label, or the index of such
    a number."""
    return -2 - index


def raise_wrong_label(target, index):
    """Raises a `ValueError` that names an example whose stored target is invalid."""
    received = target.source.name_of(index)
    if target.source.read is not None:
        example = target.source.read(tf.constant(index, tf.int64))
        received = f"{target.key}={target.shown(example)} in {received}"
    raise ValueError(f"Every {target.key} must be {target.rule}. Received: {received}")


def decoder(source, options, shape=None):
    """Returns a `tf.function` that decodes an image of a source; if `shape` is set, it checks the
    image's shape."""

    def decode(image):
        return examples.decode_pixels(image, source, options, shape=shape)[0]

    return tf.function(decode, input_signature=[source.image_spec], autograph=False)


def examine(source, index, decode, record=None):
    """Reads and decodes one example.

    Returns the example or {}, the stored bytes of its image, and an error message or "".
    """
    example = {}
    stored = b""
    reason = ""
    try:
        if record is None:
            example = source.read(tf.constant(index, tf.int64))
        else:
            example = source.shards.parse(record)
        stored = _stored_bytes(example["image"].numpy())
        if stored:
            decode(example["image"])
        else:
            reason = "the file is empty"
    except tf.errors.OpError as error:
        reason = images.reason_of(error)
    return example, stored, reason


def _stored_bytes(image):
    """Returns the bytes of an image: those of a file, of several files, or of an array."""
    if isinstance(image, bytes):
        return image
    return b"".join(image) if image.dtype == object else image.tobytes()
