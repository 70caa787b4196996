"""Tests of bad examples in batches: counts, log lines and the maximum share."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data

from .helpers import jpeg, sequential, source_of


def pipeline(source, batch_size=5, max_bad_share=0.5, **options):
    options = {"image_size": 8, "train_crop": "resize", "eval_crop": "resize", **options}
    return data.InputPipeline(
        source, source, options, batch_size, seed=4, max_bad_share=max_bad_share
    )


def count_bad(inputs, split, batches, start_step=0):
    """Returns the number of bad examples in the batches, the weights of all examples, and the log
    lines."""
    lines = []
    bad = inputs.bad_examples(split, lines.append)
    all_weights = []
    for step, (*_, weights) in enumerate(batches, start_step):
        bad.check(step, bad.update(step))
        all_weights.append(weights)
    return bad.count, np.concatenate(all_weights), lines


def bad_examples_of(n, batch_size, failures=(), **fields):
    """Returns the `BadExamples` of `n` records."""
    source = data.Source(None, n, ("a",))
    return data.BadExamples(source, dict(failures), None, batch_size, **fields)


def test_broken_files_are_logged_once_with_a_reason(photos, broken):
    inputs = pipeline(data.folder(photos))
    ten_epochs = 46  # steps of five of the 23 photos
    batches = inputs.train_batches(start_step=ten_epochs).take(14)
    count, weights, lines = count_bad(inputs, "train", batches, start_step=ten_epochs)
    assert count == (weights == 0).sum()
    # The 70 examples of the batches are slightly more than three epochs.
    assert 3 * 3 <= count <= 3 * 4
    assert len(lines) == 3 and all("which gets weight 0" in line for line in lines)
    for name in broken:
        (line,) = [line for line in lines if name in line]
        assert line.split(name)[1].strip(": ")


def test_every_evaluation_counts_broken_files_but_not_padding(photos, broken):
    inputs = pipeline(data.folder(photos), batch_size=8)
    for _ in range(2):
        count, weights, lines = count_bad(inputs, "test", inputs.eval_batches())
        assert count == len(lines) == 3 and (weights == 0).sum() == 3 + 1


def test_too_many_broken_files_are_an_error_that_names_one(photos, broken):
    inputs = pipeline(data.folder(photos), 23, max_bad_share=0.1)
    bad = inputs.bad_examples("test", lambda line: None)
    list(inputs.eval_batches())
    assert bad.update(0) == 3
    with pytest.raises(ValueError, match="max_bad_share.*3 bad examples .*such as .*: "):
        bad.check(0, 3)


@pytest.mark.parametrize(
    ("max_share", "allowed"), [(0.1, 2), (0.01, 1), (0, 0)], ids=["10 %", "at least one", "none"]
)
def test_max_bad_share_limits_the_count_of_one_epoch(max_share, allowed):
    bad = bad_examples_of(20, batch_size=4, max_share=max_share)
    for epoch in range(10):
        bad.check(5 * epoch, allowed)
    last_epoch = 9
    with pytest.raises(ValueError, match=f"Received: {allowed + 1} bad examples in one epoch"):
        bad.check(5 * last_epoch + 3, 1)


@pytest.mark.parametrize(("n", "batch_size"), [(50, 128), (150, 128), (5, 5)])
def test_batches_may_span_epochs_with_the_allowed_share(n, batch_size):
    random = np.random.default_rng(0)

    def check(bad_images):
        """Checks 300 epochs that each have this number of bad images at random positions."""
        positions = [
            epoch * n + random.choice(n, bad_images, replace=False) for epoch in range(300)
        ]
        counts = np.bincount(np.concatenate(positions) // batch_size)
        bad = bad_examples_of(n, batch_size, max_share=0.01)
        for step, count in enumerate(counts.tolist()):
            bad.check(step, count, endless=True)

    allowed = max(1, n // 100)
    check(allowed)
    with pytest.raises(ValueError, match=f"More than 1 % of {n} "):
        check(3 * allowed)


def test_last_batch_of_an_evaluation_spans_no_epochs():
    bad = bad_examples_of(50, batch_size=128)
    with pytest.raises(ValueError, match="Received: 2 bad examples"):
        bad.check(0, 2)


def test_at_most_ten_bad_examples_are_logged():
    lines = []
    failures = {0: list(range(100))}
    bad = bad_examples_of(100, 100, failures, warn=lines.append)
    assert bad.update(0) == 100 and bad.update(0) == 0
    assert len(lines) == 10 and all("which gets weight 0" in line for line in lines)


def test_broken_record_counts_once_per_epoch():
    files = [b"no image" if number == 7 else jpeg(number) for number in range(23)]
    source = sequential(source_of(files), [23])
    inputs = pipeline(source, max_bad_share=1.5 / 23, shuffle_buffer=6)
    batches = inputs.train_batches().take(23)  # five epochs
    count, weights, lines = count_bad(inputs, "train", batches)
    assert count == (weights == 0).sum() == 5
    assert lines[0] == "bad example 1, which gets weight 0: example 7: cannot be read"


def test_balanced_sampling_counts_a_broken_file_once_per_epoch():
    """Example 0, one of four of its class, is in every batch of eleven images."""
    files = [b"no image", *map(jpeg, range(1, 44))]
    labels = np.repeat([0, 1], [4, 40])
    source = source_of(files, tf.constant(labels), class_names=("a", "b"))
    source = dataclasses.replace(source, labels=labels)
    inputs = pipeline(source, 11, max_bad_share=0.01, sampling="balanced")
    bad = inputs.bad_examples("train", lambda line: None)
    counts = []
    for step, _ in enumerate(inputs.train_batches().take(8)):  # two epochs
        counts.append(bad.update(step))
        bad.check(step, counts[-1], endless=True)
    assert counts == [1, 0, 0, 0, 1, 0, 0, 0] and bad.count > 8


def test_unlabeled_examples_of_sequential_sources_are_not_bad():
    """Example 2 is broken, odd examples have no label, and the last two are missing."""
    files = [b"no image" if number == 2 else jpeg(number) for number in range(9)]
    labels = tf.ragged.constant([[0], []] * 4 + [[1, 0]], dtype=tf.int64)
    source = source_of(files, labels, class_names=("a", "b"), empty_is_negative=False)
    inputs = pipeline(sequential(source, [11]), batch_size=4)
    count, weights, lines = count_bad(inputs, "test", inputs.eval_batches())
    assert weights.tolist() == [1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0]
    assert count == 3
    assert [line.split(": ", 1)[1] for line in lines] == [
        f"example {i}: cannot be read" for i in (2, 9, 10)
    ]


def flaky(source, failures):
    """Returns a source in which the first `failures[index]` reads of an example fail, and a counter
    of reads."""
    reads = collections.Counter()

    def fails(index):
        reads[int(index)] += 1
        return reads[int(index)] <= failures.get(int(index), 0)

    def read(index):
        failed = tf.numpy_function(fails, [index], tf.bool)
        with tf.control_dependencies([tf.raw_ops.Assert(condition=~failed, data=["HTTP 503"])]):
            return {key: tf.identity(value) for key, value in source.read(index).items()}

    return dataclasses.replace(source, read=read), reads


def test_failed_reads_are_repeated_once(photos, broken):
    """Reads of example 20 fail once, and those of 0 and 8 fail twice. Files 3, 13 and 21 are
    broken."""
    source, reads = flaky(data.folder(photos), {20: 1, 0: 2, 8: 2})
    inputs = pipeline(source)
    count, weights, lines = count_bad(inputs, "test", inputs.eval_batches())
    assert np.flatnonzero(weights[:23] == 0).tolist() == [0, 3, 8, 13, 21] and count == 5
    assert reads[20] == 2
    assert ["readable now" in line for line in lines] == [True, False, True, False, False]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_pixel_that_is_not_finite_is_a_bad_example(value):
    pixels = np.ones((3, 8, 8, 3), "float16")
    pixels[1, 7, 7, 2] = value
    inputs = pipeline(source_of(pixels, max_value=1), 3, train_crop="inception")
    batches = list(inputs.train_batches().take(1))
    count, weights, lines = count_bad(inputs, "train", batches)
    assert count == (weights == 0).sum() == 1 and np.isfinite(batches[0][0]).all()
    assert "example 1: " in lines[0] and "pixels must be finite" in lines[0]


def test_each_host_counts_its_own_bad_examples(photos, broken):
    """A host also reads the mixup partners of its examples, but does not count them."""
    counts = []
    for host in range(2):
        inputs = pipeline(data.folder(photos), batch_size=6, mixup_alpha=0.4)
        batches = inputs.train_batches(num_hosts=2, host_index=host)
        count, *_ = count_bad(inputs, "train", batches.take(23))  # six epochs
        counts.append(count)
    assert sum(counts) == 6 * 3 and min(counts) > 0
