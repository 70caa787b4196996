"""A look at every example of a source before training: what is bad, what is there twice, which classes are empty."""

import collections
import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from keras_vit.data.bad_examples import examine
from keras_vit.data.options import Options


def verify(source, max_megapixels=100.0, threads=8, progress=iter):
    """Reads and decodes every example.

    Args:
        source: a `Source`.
        max_megapixels: larger images are bad.
        threads: how many examples are read at a time.
        progress: a function of an iterator over `num_examples` things to one that shows how far it is, such as `tqdm`.

    Returns:
        A dict: `examples`, how many; `bad`, the names of what cannot be read; `reasons`, from such a name to why;
        `duplicates`, lists of the names of images that are equal byte for byte; `empty_classes`, names.
    """
    options = Options(image_size=8, max_megapixels=max_megapixels).resolve(source)
    counts = np.zeros(len(source.class_names), np.int64)
    same, reasons = collections.defaultdict(list), {}
    for name, digest, reason, labels in progress(_examined(source, options, threads)):
        if reason:
            reasons[name] = reason
        if digest:
            same[digest].append(name)
        known = labels[(labels >= 0) & (labels < len(counts))]
        np.add.at(counts, known, 1)
    return {
        "examples": source.num_examples,
        "bad": list(reasons),
        "reasons": reasons,
        "duplicates": [names for names in same.values() if len(names) > 1],
        "empty_classes": [name for name, count in zip(source.class_names, counts) if not count],
    }


def _examined(source, options, threads):
    """`(name, digest, reason, labels)` of each example, in order, a bounded number of them ahead."""

    def work(index, example=None):
        stored, labels, reason = examine(source, index, options, example)
        if source.labels is not None:
            labels = source.labels[index]
        digest = hashlib.sha256(stored).digest() if stored else b""
        return source.name_of(index), digest, reason, np.atleast_1d(labels)

    if source.read is None:
        items = enumerate(source.records())
    else:
        items = ((index,) for index in range(source.num_examples))
    pending = collections.deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            pending.append(pool.submit(work, *item))
            if len(pending) >= 4 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
