"""Chooses and reads single test examples, to show them."""

import dataclasses

import numpy as np

from keras_vit import data
from keras_vit.evaluation.collecting import with_labels


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
    indices = [int(index) for index in indices]
    source = inputs.test
    order = indices
    if source.read is None:
        order = data.evaluation_order(source, inputs.batch_size).tolist()
    else:
        source = data.subset(source, indices)
    last = max(map(order.index, indices))
    selected = dataclasses.replace(with_labels(inputs), test=source)
    bad_examples = selected.bad_examples("test", warn=lambda line: None)
    examples = {}
    for step, batch in enumerate(selected.eval_batches()):
        images, labels, weights = map(np.asarray, batch)
        bad_examples.update(step)
        counted = weights > 0
        if selected.target == "classes":
            counted &= (labels > 0).any(1)
        start = step * inputs.batch_size
        for index, image, label, counts in zip(order[start:], images, labels, counted):
            if counts and index in indices:
                examples[index] = image, label, inputs.test.short_name(index)
        if last < start + len(images):
            break
    found = [examples[index] for index in indices if index in examples]
    if not found:
        raise ValueError(
            "At least one example must be readable and have a correct class. Received: "
            f"{len(indices)} examples"
        )
    images, labels, names = zip(*found)
    return np.stack(images), np.stack(labels), names
