"""A look at every example of a source before training: what is bad, what is there twice, which classes are empty."""

import collections
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_vit.data.bad_examples import decoder, examine
from keras_vit.data.options import Options
from keras_vit.data.sources import Source


def verify(
    sources: Source | Mapping[str, Source], progress: Callable[[Iterator], Iterable] = iter, **fields: Any
) -> dict[str, Any]:
    """Reads and decodes every example, as training would.

    Args:
        sources: a `Source`, or a dict of them by the name of their split. Of several splits, "split: " stands before
            every name in the report.
        progress: a function of an iterator over all examples to one that shows how far it is, such as `tqdm`.
        **fields: fields of `Options`, such as `max_megapixels`, `channels` and `threads`, the number of examples that
            are read at a time.

    Returns:
        A dict: `examples`, how many; `bad`, the names of what cannot be read; `reasons`, from such a name to why;
        `duplicates`, lists of the names of images that are equal byte for byte, also between splits; `empty_classes`,
        names.

    Raises:
        ValueError: an option is out of range or does not fit a source.
    """
    sources = {"": sources} if isinstance(sources, Source) else sources
    prefixes = {split: f"{split}: " if len(sources) > 1 else "" for split in sources}
    # Nothing is resized or cropped here.
    options = Options(**{**fields, "image_size": 8, "train_crop": "resize", "eval_crop": "resize"})
    resolved = {split: options.resolve(source) for split, source in sources.items()}
    counts = {split: np.zeros(len(source.class_names), np.int64) for split, source in sources.items()}

    def examined():
        for split, source in sources.items():
            for example in _examined(source, resolved[split]):
                yield split, example

    names_of, reasons = collections.defaultdict(list), {}
    for split, (name, digest, reason, labels) in progress(examined()):
        name = prefixes[split] + name
        if reason:
            reasons[name] = reason
        if digest:
            names_of[digest].append(name)
        known = labels[(labels >= 0) & (labels < len(counts[split]))]
        np.add.at(counts[split], known, 1)
    return {
        "examples": sum(source.num_examples for source in sources.values()),
        "bad": list(reasons),
        "reasons": reasons,
        "duplicates": [names for names in names_of.values() if len(names) > 1],
        "empty_classes": [
            prefixes[split] + name
            for split, source in sources.items()
            for name, count in zip(source.class_names, counts[split])
            if not count
        ],
    }


def _examined(source, options):
    """`(name, digest, reason, labels)` of each example, in order, a bounded number of them ahead."""
    decode = decoder(source, options)

    def work(index, record=None):
        stored, labels, reason = examine(source, int(index), decode, record)
        if source.labels is not None:
            labels = source.labels[index]
        digest = hashlib.sha256(stored).digest() if stored else b""
        return source.name_of(index), digest, reason, np.atleast_1d(labels)

    if source.read is None:
        items = source.shards.in_order()
    else:
        items = ((index,) for index in range(source.num_examples))
    pending, threads = collections.deque(), options.threads or 8
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            pending.append(pool.submit(work, *item))
            if len(pending) >= 4 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
