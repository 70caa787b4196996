"""Chooses and reads single test examples, to show them."""

import dataclasses
import logging

import numpy as np

from keras_vit import data
from keras_vit.evaluation.collecting import with_labels

log = logging.getLogger("keras_vit")


def sample_indices(inputs, number):
    """Returns the indices of up to `number` test examples: evenly spaced, or the first ones of a
    sequential source.

    If the labels of a multi-label source are known, only examples with a class are chosen.
    """
    source = inputs.test
    if source.read is None:
        return data.evaluation_order(source, inputs.batch_size)[:number]
    candidates = np.arange(source.num_examples)
    if source.multi_label and source.labels is not None and source.labels.any():
        candidates = candidates[source.labels.any(1)]
    return candidates[np.unique(np.linspace(0, len(candidates) - 1, number).astype(int))]


def read_test_examples(inputs, indices):
    """Reads test examples by index; returns `(images, labels, file names)` of the readable examples
    with a correct class, or another kind of target."""
    source = inputs.test
    if source.read is None:
        order = data.evaluation_order(source, inputs.batch_size)
    else:
        source = data.subset(source, indices)
        order = np.asarray(indices)
    is_requested = np.isin(order, indices)
    examples = {}
    # Read batches up to the last requested example.
    selected = dataclasses.replace(with_labels(inputs), test=source)
    bad_examples = selected.bad_examples("test", log.debug)
    for step, batch in enumerate(selected.eval_batches()):
        images, labels, weights = (np.asarray(part) for part in batch)
        bad_examples.update(step)
        start = step * inputs.batch_size
        counted = weights > 0
        if selected.target == "classes":
            counted &= (labels > 0).any(1)
        for row in np.flatnonzero(counted):
            if is_requested[start + row]:
                index = int(order[start + row])
                examples[index] = images[row], labels[row], inputs.test.short_name(index)
        if not is_requested[start + len(images) :].any():
            break
    found = [examples[index] for index in map(int, indices) if index in examples]
    if not found:
        raise ValueError(
            "At least one example must be readable and have a correct class. Received: "
            f"{len(indices)} examples"
        )
    images, labels, names = zip(*found)
    return np.stack(images), np.stack(labels), names
