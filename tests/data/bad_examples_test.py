"""Tests of bad examples in batches: counts, log lines and the maximum share."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data

from .helpers import jpeg, sequential

LABEL = tf.constant(0, tf.int64)


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


def black_images(n, **changes):
    source = data.arrays(np.zeros([n, 8, 8, 3], np.uint8), np.zeros(n, int), ["a"])
    return dataclasses.replace(source, **changes)


def test_broken_files_are_logged_once_with_a_reason(photos, broken):
    """Resumes a run after ten epochs."""
    inputs = pipeline(data.folder(photos))
    batches = inputs.train_batches(start_step=46).take(14)
    count, weights, lines = count_bad(inputs, "train", batches, start_step=46)
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
        assert count == 3 and all(any(name in line for line in lines) for name in broken)
        assert len(weights) == 24 and (weights == 0).sum() == 4


def test_broken_files_in_every_batch_do_not_stall(photos):
    for path in sorted(photos.rglob("*.jpg"))[::2]:
        path.write_text("this is no image")
    source = data.folder(photos)
    options = {"batch_size": 4, "image_size": 8}
    images, _, weights = (
        np.concatenate(parts) for parts in zip(*data.eval_batches(source, **options))
    )
    assert weights.tolist() == [0, 1] * 11 + [0, 0]
    np.testing.assert_array_equal(images.any((1, 2, 3)), weights > 0)
    assert len(list(data.train_batches(source, seed=0, **options).take(7))) == 7


def test_too_many_broken_files_are_an_error_that_names_one(photos, broken):
    inputs = pipeline(data.folder(photos), 23, max_bad_share=0.1)
    bad = inputs.bad_examples("test", lambda line: None)
    assert len(list(inputs.eval_batches())) == 1 and bad.update(0) == 3
    with pytest.raises(ValueError, match="max_bad_share.*3 bad examples .*such as .*: "):
        bad.check(0, 3)


@pytest.mark.parametrize(
    ("max_share", "allowed"), [(0.1, 2), (0.01, 1), (0, 0)], ids=["10 %", "at least one", "none"]
)
def test_max_bad_share_limits_the_count_of_one_epoch(max_share, allowed):
    bad = data.BadExamples(black_images(20), {}, None, batch_size=4, max_share=max_share)
    for epoch in range(10):
        bad.check(5 * epoch, allowed)
    last_epoch = 9
    with pytest.raises(ValueError, match=f"Received: {allowed + 1} bad examples in one epoch"):
        bad.check(5 * last_epoch + 3, 1)


@pytest.mark.parametrize(("n", "batch_size"), [(50, 128), (150, 128), (5, 5)])
def test_batches_may_span_epochs_with_the_allowed_share(n, batch_size):
    source = black_images(n)
    random = np.random.default_rng(0)

    def check(bad_images):
        """Checks 300 epochs that each have this number of bad images at random positions."""
        positions = [
            epoch * n + random.choice(n, bad_images, replace=False) for epoch in range(300)
        ]
        counts = np.bincount(np.concatenate(positions) // batch_size)
        bad = data.BadExamples(source, {}, None, batch_size, max_share=0.01)
        for step, count in enumerate(counts.tolist()):
            bad.check(step, count, endless=True)

    allowed = max(1, n // 100)
    check(allowed)
    with pytest.raises(ValueError, match=f"More than 1 % of {n} "):
        check(3 * allowed)


def test_last_batch_of_an_evaluation_spans_no_epochs():
    bad = data.BadExamples(black_images(50), {}, None, batch_size=128)
    with pytest.raises(ValueError, match="Received: 2 bad examples"):
        bad.check(0, 2)


def test_at_most_ten_bad_examples_are_logged():
    lines = []
    failures = {0: list(range(100))}
    bad = data.BadExamples(black_images(100, read=None), failures, None, 100, warn=lines.append)
    assert bad.update(0) == 100 and bad.update(0) == 0
    assert len(lines) == 10 and all("which gets weight 0" in line for line in lines)


def test_broken_record_counts_once_per_epoch():
    files = [b"no image" if number == 7 else jpeg(number) for number in range(23)]

    def read(index):
        return {"image": tf.gather(files, index), "label": LABEL}

    source = sequential(data.Source(read, 23, ("a",)), [23])
    inputs = pipeline(source, max_bad_share=1.5 / 23, shuffle_buffer=6)
    batches = inputs.train_batches().take(23)  # five epochs
    count, weights, lines = count_bad(inputs, "train", batches)
    assert count == (weights == 0).sum() == 5
    assert lines[0] == "bad example 1, which gets weight 0: example 7: cannot be read"


def test_balanced_sampling_counts_a_broken_file_once_per_epoch():
    """Example 0, one of four of its class, is in every batch of eleven images."""
    files = [b"no image", *map(jpeg, range(1, 44))]
    labels = np.array([0] * 4 + [1] * 40)

    def read(index):
        return {"image": tf.gather(files, index), "label": tf.gather(labels, index)}

    source = data.Source(read, 44, ("a", "b"), labels=labels)
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

    def read(index):
        return {"image": tf.gather(files, index), "label": labels[index]}

    source = sequential(data.Source(read, 9, ("a", "b"), empty_is_negative=False), [11])
    inputs = pipeline(source, batch_size=4)
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


@pytest.mark.parametrize(
    ("split", "value", "dtype"),
    [("train", np.nan, "float32"), ("test", np.inf, "float16"), ("train", -np.inf, "float64")],
)
def test_pixel_that_is_not_finite_is_a_bad_example(split, value, dtype):
    pixels = np.ones((3, 8, 8, 3), dtype)
    pixels[1, 7, 7, 2] = value

    def read(index):
        return {"image": tf.constant(pixels)[index], "label": LABEL}

    source = data.Source(read, 3, ("a",), max_value=1)
    inputs = pipeline(source, 3, image_size=4, train_crop="inception")
    dataset = inputs.train_batches() if split == "train" else inputs.eval_batches()
    batches = list(dataset.take(1))
    count, weights, lines = count_bad(inputs, split, batches)
    assert count == (weights == 0).sum() == 1
    assert all(np.isfinite(images).all() for images, *_ in batches)
    assert "example 1: " in lines[0] and "pixels must be finite" in lines[0]


def test_each_host_counts_its_own_bad_examples(photos, broken):
    counts = []
    for host in range(2):
        inputs = pipeline(data.folder(photos), batch_size=6)
        batches = inputs.eval_batches(num_hosts=2, host_index=host)
        count, *_ = count_bad(inputs, "test", batches)
        counts.append(count)
    # The bad examples 3, 13 and 21 are in slots 3, 1 and 3 of their batches. Host 0 reads slots 0
    # to 2.
    assert counts == [1, 2]
