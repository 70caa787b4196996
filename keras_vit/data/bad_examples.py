"""Counts and names unreadable examples in a run, and finds all of them beforehand."""

import collections
import hashlib
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data import examples
from keras_vit.data.options import Options
from keras_vit.data.sources.source import Source

log = logging.getLogger(__name__)

NAMED = 10  # examples whose names and reasons are logged; the others are only counted


class BadExamples:
    """Counts and names the examples of a pipeline that could not be read and came with weight 0.

    Args:
        source: the `Source` of the batches.
        failures: from a step to the indices of its examples that failed, as the batches fill it.
        decode: what `decoder` returns, for the reason of a failure.
        batch_size: examples in a batch, over all hosts.
        max_share: the share of the source that may be bad in one epoch, in [0, 1].
        warn: a function of a line that names an example.

    Attributes:
        count: failures so far.
    """

    def __init__(
        self,
        source: Source,
        failures: dict[int, list[int]],
        decode: Callable,
        batch_size: int,
        max_share: float = 0.01,
        warn: Callable[[str], object] = log.warning,
    ) -> None:
        if not 0 <= max_share <= 1:
            raise ValueError(f"`max_bad_share` must be in [0, 1]. Received: max_bad_share={max_share}")
        self._source, self._failures, self._decode = source, failures, decode
        self._batch_size, self._max_share, self._warn = batch_size, max_share, warn
        self._epoch = self._epoch_count = self.count = 0
        self._named: set[str] = set()
        self._last = ""

    def update(self, step: int) -> int:
        """Names the bad examples in this host's part of the batch of a step; returns how many there are."""
        indices = self._failures.pop(step, [])
        for index in indices:
            self.count += 1
            name = self._source.name_of(index)
            if name not in self._named and len(self._named) < NAMED:
                self._named.add(name)
                reason = self._reason(index)
                self._last = f", such as {name}: {reason}"
                self._warn(f"bad example {self.count}, counted with weight 0: {name}: {reason}")
        return len(indices)

    def check(self, step: int, count: int) -> None:
        """Raises a `ValueError` if more than `max_share` of an epoch is bad, with `count` examples more at a step.

        Args:
            step: of the batch, from 0.
            count: bad examples in the batch, over all hosts.
        """
        epoch = step * self._batch_size // self._source.num_examples
        if epoch != self._epoch:
            self._epoch, self._epoch_count = epoch, 0
        self._epoch_count += count
        # One bad example in a small folder does not end a run, unless none is allowed.
        allowed = max(self._max_share * self._source.num_examples, 1 if self._max_share else 0)
        if self._epoch_count > allowed:
            raise ValueError(
                f"More than {100 * self._max_share:g} % of {self._source.num_examples} examples are bad; "
                "--config.data.max_bad_share allows more, and `keras-vit verify-data` lists them all. "
                f"Received: {self._epoch_count} bad examples in one epoch{self._last}"
            )

    def _reason(self, index):
        if self._source.read is None:
            return "cannot be read"
        return examine(self._source, index, self._decode)[2] or "it could not be read twice, and can be read now"


def decoder(source, options, shape=None):
    """A function that decodes an image of a source, of a shape if one is given; traced once, as one graph."""
    spec = source.image_spec
    decode = lambda image: tf.shape(examples.decode_pixels(image, source, options, shape=shape)[0])  # noqa: E731
    return tf.function(decode, input_signature=[tf.TensorSpec(spec.shape, spec.dtype)], autograph=False)


def examine(source, index, decode, record=None):
    """Reads and decodes one example: `(stored bytes or None, labels, why it is bad or "")`."""
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


def verify(
    sources: Source | Mapping[str, Source], progress: Callable[[Iterator], Iterable] = iter, **fields: Any
) -> dict[str, Any]:
    """Reads and decodes every example, as training would.

    Args:
        sources: a `Source`, or a dict of them by split; with several, names in the report start with "split: ".
        progress: a function of an iterator over all examples to one that shows progress, such as `tqdm`.
        **fields: fields of `Options`, such as `max_megapixels`, `channels` and `threads`.

    Returns:
        A dict: `examples`, how many; `bad`, the names of unreadable examples; `reasons`, from such a name to why;
        `duplicates`, lists of the names of images that are equal byte for byte, also between splits; `empty_classes`,
        names.
    """
    sources = {"": sources} if isinstance(sources, Source) else sources
    prefixes = {split: f"{split}: " if len(sources) > 1 else "" for split in sources}
    # Nothing is resized or cropped here.
    options = Options(**{**fields, "image_size": 8, "train_crop": "resize", "eval_crop": "resize"})
    decoders = {split: decoder(source, options.resolve(source)) for split, source in sources.items()}
    counts = {split: np.zeros(len(source.class_names), np.int64) for split, source in sources.items()}

    names_of, reasons = collections.defaultdict(list), {}
    threads = options.threads or 8
    examined = ((split, *row) for split in sources for row in _examined(sources[split], decoders[split], threads))
    for split, name, digest, reason, labels in progress(examined):
        name = prefixes[split] + name
        if reason:
            reasons[name] = reason
        if digest:
            names_of[digest].append(name)
        np.add.at(counts[split], labels[(labels >= 0) & (labels < len(counts[split]))], 1)
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
    }


def _examined(source, decode, threads):
    """`(name, digest, reason, labels)` of each example, in order, with a bounded number of them ahead."""

    def work(index, record=None):
        stored, labels, reason = examine(source, int(index), decode, record)
        if source.labels is not None:
            labels = source.labels[index]
        digest = hashlib.sha256(stored).digest() if stored else b""
        return source.name_of(index), digest, reason, np.atleast_1d(labels)

    items = source.shards.in_order() if source.read is None else ((index,) for index in range(source.num_examples))
    items = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        while some := list(itertools.islice(items, 16 * threads)):
            yield from pool.map(lambda item: work(*item), some)


def _first_line(message):
    """The reason in an error of TensorFlow, without the stack of functions and lines of code."""
    text = re.sub(r"\{\{\w+ [^}]*\}\}", " ", message)
    stack = ("Graph execution error", "Detected at node", "File ", "<stack traces", "Stack trace", "[[")
    reasons = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(stack)]
    text = reasons[0].split(" [Op:")[0] if reasons else "it cannot be decoded"
    return " ".join(text.removeprefix("assertion failed: ").split())[:300]
