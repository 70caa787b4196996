"""Tests of examples that cannot be read or have no label, which get weight 0 in their batches."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data

from .helpers import KINDS, numbered, numbers_of, png, sequential, take

N = 23
RESIZED = {
    "image_size": 2,
    "train_crop": "resize",
    "eval_crop": "resize",
    "flip": "off",
    "shuffle_buffer": 16,
    "threads": 2,
}
TRAINING_AND_EVALUATION = pytest.mark.parametrize(
    "make_batches",
    [functools.partial(data.train_batches, seed=1), data.eval_batches],
    ids=["training", "evaluation"],
)


def unreadable(broken):
    """Returns a source in which every read of a `broken` example fails."""
    source = numbered()

    def read(index):
        is_broken = tf.reduce_any(index == tf.constant(broken, tf.int64))
        check = tf.raw_ops.Assert(condition=~is_broken, data=["broken on purpose"])
        with tf.control_dependencies([check]):
            return {key: tf.identity(value) for key, value in source.read(index).items()}

    return dataclasses.replace(source, read=read)


def damaged_files(broken):
    """Returns a source of PNGs, of which the `broken` ones are no images."""
    source = numbered()
    pixels = np.zeros((2, 2, 3), np.uint8)
    files = [b"no image" if i in broken else png(pixels + i) for i in range(N)]

    def read(index):
        return {"image": tf.gather(files, index), "label": tf.gather(source.labels, index)}

    return dataclasses.replace(source, read=read)


def damaged_records(broken):
    return sequential(damaged_files(broken), [11, 12])  # one reader reads both shards


@TRAINING_AND_EVALUATION
@pytest.mark.parametrize("source_of", [unreadable, damaged_files, damaged_records])
def test_broken_examples_do_not_change_others(source_of, make_batches):
    broken = [0, 1, 2, 3, 21, 22]
    batches, intact_batches = (
        take(make_batches(source_of(indices), batch_size=4, **RESIZED), 6)
        for indices in (broken, [])
    )
    found = set()
    for (images, labels, weights), (whole, all_labels, all_weights) in zip(batches, intact_batches):
        is_good = weights > 0
        np.testing.assert_array_equal(images[is_good], whole[is_good])
        np.testing.assert_array_equal(labels[is_good], all_labels[is_good])
        assert not images[~is_good].any() and not labels[~is_good].any()
        found |= {*numbers_of(whole[~is_good & (all_weights > 0)])}
    assert found == {*broken}


def test_mixup_skips_broken_partners():
    source = unreadable([*range(0, N, 3)])
    plain = take(data.train_batches(source, batch_size=6, seed=2), 8)
    mixed = take(data.train_batches(source, batch_size=6, seed=2, mixup_alpha=0.5), 8)
    num_without_partner = 0
    for (images, labels, weights), (mixed_images, mixed_labels, mixed_weights) in zip(plain, mixed):
        np.testing.assert_array_equal(weights, mixed_weights)
        is_unmixed = (weights > 0) & (np.roll(weights, 1) == 0)
        num_without_partner += is_unmixed.sum()
        np.testing.assert_allclose(mixed_images[is_unmixed], images[is_unmixed], atol=1e-6)
        np.testing.assert_allclose(mixed_labels[is_unmixed], labels[is_unmixed], atol=1e-6)
        assert not mixed_labels[weights == 0].any()
    assert num_without_partner > 3


@pytest.mark.parametrize("label", [5, -1])
@KINDS
def test_label_out_of_range_is_an_error_that_names_the_example(kind, label):
    good = numbered()

    def read(index):
        example = good.read(index)
        wrong = tf.constant(label, tf.int64)
        return example | {"label": tf.where(index == 3, wrong, example["label"])}

    source = kind(dataclasses.replace(good, read=read))
    message = "from 0 to 4.*example 3"
    batches = data.train_batches(source, batch_size=8, seed=0, **RESIZED)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(batches.take(6))
    inputs = data.InputPipeline(source, source, RESIZED, 8, 0, 1.0)
    bad = inputs.bad_examples("test", lambda line: None)
    with pytest.raises(ValueError, match=message):
        for step, _ in enumerate(inputs.eval_batches()):
            bad.update(step)


@pytest.mark.parametrize("is_negative", [True, False], ids=["negative", "missing"])
@KINDS
def test_empty_label_is_negative_or_missing(kind, is_negative):
    """The image with index i has the classes from 0 to i % 3 - 1."""
    good = numbered()

    def read(index):
        return good.read(index) | {"label": tf.range(index % 3)}

    source = kind(dataclasses.replace(good, read=read, empty_is_negative=is_negative))
    targets = np.array([[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]])
    # Images without a class have no smoothed labels either.
    smoothed_targets = 0.5 * targets + 0.5 / 5 * targets.any(1, keepdims=True)
    smoothed = data.train_batches(source, batch_size=3, seed=0, label_smoothing=0.5, **RESIZED)
    for images, labels, weights in take(smoothed, 7):
        num_labels = numbers_of(images) % 3
        np.testing.assert_allclose(labels, smoothed_targets[num_labels])
        np.testing.assert_array_equal(weights, (num_labels > 0) | is_negative)


def test_missing_records_have_weight_0_in_every_epoch():
    source = sequential(numbered(), [N + 2])
    batches = take(data.train_batches(source, batch_size=5, seed=1, **RESIZED), 10)
    images, _, weights = (np.concatenate(parts) for parts in zip(*batches))
    for epoch in (slice(0, 25), slice(25, 50)):
        numbers = numbers_of(images[epoch][weights[epoch] > 0])
        assert sorted(numbers) == list(range(N))
