"""Reports unreadable examples during a run, or finds all of them before a run."""

import collections
import dataclasses
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data import examples, images, inputs
from keras_vit.data.file_kinds import KINDS, kinds_of
from keras_vit.data.options import Options
from keras_vit.data.sources.source import Source
from keras_vit.data.targets import TARGETS, Classes, NoTarget, Target

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
    try:
        if record is None:
            example = source.read(tf.constant(index, tf.int64))
        else:
            example = source.shards.parse(record)
        stored = _stored_bytes(example["image"].numpy())
        if not stored:
            return example, stored, "the file is empty"
        decode(example["image"])
    except tf.errors.OpError as error:
        return example, stored, images.reason_of(error)
    return example, stored, ""


def _stored_bytes(image):
    """Returns the bytes of an image: those of a file, of several files, or of an array."""
    if isinstance(image, bytes):
        return image
    return b"".join(image) if image.dtype == object else image.tobytes()


def verify(
    sources: Source | Mapping[str, Source],
    progress: Callable[[Iterator], Iterable] = iter,
    **fields: Any,
) -> dict[str, Any]:
    """Reads and decodes every example, as training would.

    Args:
        sources: a `Source`, or a dict from splits to sources. If there are several splits, names in
            the report start with the split, such as "train: ".
        progress: function that wraps the iterator over all examples to show progress, such as
            `tqdm`.
        **fields: fields of `Options`, such as `max_megapixels` and `channels`. `threads` is 8 by
            default.

    Returns: A dict with `examples`, the number of examples; `bad`, the names of examples with an
        unreadable image or an invalid label; `reasons`, a dict from these names to error messages;
        `duplicates`, a list with the names of each group of byte-identical images, within and
        across splits; `empty_classes`, the names of classes without examples; `rotated`, the
        names of JPEG files whose EXIF orientation is not upright; and `palette`, `gray` and
        `12-bit`, the names of files that store their pixels so.
    """
    sources = {"": sources} if isinstance(sources, Source) else sources
    prefixes = {split: f"{split}: " if len(sources) > 1 else "" for split in sources}
    # Choose options that are valid for any source. Images are only decoded.
    fields |= {
        **inputs.DEFAULTS,
        "image_size": 8,
        "train_crop": "resize",
        "eval_crop": "resize",
        "augreg": "none",
        "randaugment_layers": 0,
    }
    options = Options(**fields)
    examined = (
        (split, *row)
        for split, source in sources.items()
        for row in _examined(source, options.resolve(source))
    )
    counts = {split: _known_counts(source) for split, source in sources.items()}
    names_of = collections.defaultdict(list)
    reasons = {}
    kinds: dict[str, list[str]] = {kind: [] for kind in ("rotated", *KINDS)}
    for split, name, digest, reason, labels, file_kinds in progress(examined):
        name = prefixes[split] + name
        for kind in file_kinds:
            kinds[kind].append(name)
        if reason:
            reasons[name] = reason
        if digest:
            names_of[digest].append(name)
        np.add.at(counts[split], labels, 1)
    empty = [
        prefixes[split] + source.class_names[label]
        for split, source in sources.items()
        for label in np.flatnonzero(counts[split] == 0)
    ]
    return {
        "examples": sum(source.num_examples for source in sources.values()),
        "bad": list(reasons),
        "reasons": reasons,
        "duplicates": [names for names in names_of.values() if len(names) > 1],
        "empty_classes": empty,
        **kinds,
    }


def _known_counts(source):
    """Returns the number of examples of each class, or zeros if the labels are unknown."""
    if source.labels is None:
        return np.zeros(len(source.class_names), np.int64)
    return source.class_counts()


def _examined(source, options):
    """Yields `(name, digest, reason, labels, kinds of the file)` of each example, in order.

    `labels` are the classes of the example if they are not in `source.labels`. Examines a bounded
    number of examples ahead, in parallel.
    """
    decode = decoder(source, options)
    orientation = tf.function(
        images.orientation, input_signature=[tf.TensorSpec((), tf.string)], autograph=False
    )
    # Trace the functions first, because TensorFlow warns if several threads wait for a trace.
    for function in (decode, orientation):
        function.get_concrete_function()
    is_encoded = source.is_encoded
    has_target = source.class_names or source.target != "classes"
    target = TARGETS[source.target](source, options) if has_target else NoTarget(source)

    def work(index, record=None):
        example, stored, reason = examine(source, int(index), decode, record)
        labels = np.zeros([0], np.int64)
        if example and not reason:
            if problem := target.problem_of(example):
                reason = f"the {target.key} must be {target.rule}, but is: {problem}"
            elif source.labels is None:
                labels = target.classes_of(example)
        digest = hashlib.sha256(stored).digest() if stored else b""
        kinds = kinds_of(stored) if is_encoded else []
        if is_encoded and orientation(stored) > 1:
            kinds.append("rotated")
        return source.name_of(index), digest, reason, labels, kinds

    items = iter(
        source.shards.in_order() if source.read is None else zip(range(source.num_examples))
    )
    threads = options.threads or 8
    with ThreadPoolExecutor(threads) as pool:
        while some := list(itertools.islice(items, 16 * threads)):
            yield from pool.map(lambda item: work(*item), some)
