"""Finds all unreadable examples, duplicates and empty classes before a run."""

import collections
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_vit.data import inputs
from keras_vit.data.bad_examples import decoder, examine
from keras_vit.data.file_kinds import KINDS, kinds_of, orientation_of
from keras_vit.data.options import Options
from keras_vit.data.sources.source import Source
from keras_vit.data.targets import TARGETS, NoTarget


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
    # The number of examples of each class; 0 if the labels are unknown.
    counts = {
        split: np.zeros(len(source.class_names), np.int64)
        if source.labels is None
        else source.class_counts()
        for split, source in sources.items()
    }
    names_of = collections.defaultdict(list)
    reasons = {}
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
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


def _examined(source, options):
    """Yields `(name, digest, reason, labels, kinds of the file)` of each example, in order.

    `labels` are the classes of the example if they are not in `source.labels`. Examines a bounded
    number of examples ahead, in parallel.
    """
    decode = decoder(source, options)
    # Trace the functions first, because TensorFlow warns if several threads wait for a trace.
    for function in (decode, orientation_of):
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
        return source.name_of(index), digest, reason, labels, kinds

    items = iter(
        source.shards.in_order() if source.read is None else zip(range(source.num_examples))
    )
    threads = options.threads or 8
    with ThreadPoolExecutor(threads) as pool:
        while some := list(itertools.islice(items, 16 * threads)):
            yield from pool.map(lambda item: work(*item), some)
