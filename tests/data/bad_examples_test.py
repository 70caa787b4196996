"""Tests of bad examples: counts, log lines, the maximum share, and `data.verify`."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import data
from keras_vit.data import examples
from keras_vit.data.config import InputPipeline
from keras_vit.data.sources.shards import Shards


@pytest.fixture
def broken(photos, images_of):
    (photos / "ant" / "03.jpg").write_bytes(images_of(3)[:300])
    (photos / "bee" / "01.jpg").write_text("this is no image")
    (photos / "cat" / "02.jpg").write_bytes(b"")
    return {str(photos / name) for name in ("ant/03.jpg", "bee/01.jpg", "cat/02.jpg")}


def pipeline(source, batch_size=5, max_bad_share=0.5, **options):
    options = {"image_size": 8, "train_crop": "resize", "eval_crop": "resize", **options}
    return InputPipeline(source, source, options, batch_size, 4, max_bad_share)


def count(inputs, split, batches, logged):
    """Counts bad examples in `(step, batch)` pairs; returns the `BadExamples` and the weights of
    all examples."""
    bad = inputs.bad_examples(split, logged.append)
    all_weights = []
    for step, (*_, weights) in batches:
        bad.check(step, bad.update(step))
        all_weights.append(weights)
    return bad, np.concatenate(all_weights)


def test_broken_files_are_logged_once_with_a_reason(photos, broken):
    inputs = pipeline(data.folder(photos))
    logged = []
    bad, weights = count(inputs, "train", enumerate(inputs.train_batches().take(14)), logged)
    assert bad.count == (weights == 0).sum()
    assert bad.count in range(3 * 3, 3 * 4 + 1)  # 70 examples are slightly more than three epochs
    named = [line for line in logged if "which gets weight 0" in line]
    assert named == logged and len(named) == 3
    for name in broken:
        (line,) = [line for line in named if name in line]
        assert line.split(name)[1].strip(": ")


@pytest.mark.full
def test_resumed_run_logs_the_same_broken_files(photos, broken):
    inputs = pipeline(data.folder(photos))
    logged = []
    count(inputs, "train", enumerate(inputs.train_batches(start_step=30).take(8), 30), logged)
    assert {name for name in broken for line in logged if name in line} == broken


@pytest.mark.full
def test_evaluation_counts_broken_files_but_not_padding(photos, broken):
    inputs = pipeline(data.folder(photos), batch_size=8)
    logged = []
    for _ in range(2):  # every evaluation counts the broken files again
        bad, weights = count(inputs, "test", enumerate(inputs.eval_batches()), logged)
        assert bad.count == 3 and all(any(name in line for line in logged) for name in broken)
    assert len(weights) == 24 and (weights == 0).sum() == 4


@pytest.mark.full
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_broken_files_in_every_batch_do_not_stall(photos, every):
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))):
        if number % every == 0:
            path.write_text("this is no image")
    batches = list(data.eval_batches(data.folder(photos), batch_size=4, image_size=8))
    weights = np.concatenate([weights for *_, weights in batches])
    assert weights.tolist() == [float(number % every != 0) for number in range(23)] + [0]
    assert all(
        np.any(image) == bool(weight)
        for images, _, w in batches
        for image, weight in zip(images, w)
    )
    assert (
        len(
            list(
                data.train_batches(data.folder(photos), batch_size=4, seed=0, image_size=8).take(7)
            )
        )
        == 7
    )


@pytest.mark.full
def test_exceeding_max_bad_share_raises_an_error(photos, broken):
    for share in (0.1, 0.14):
        inputs = pipeline(data.folder(photos), 23, share)
        bad = inputs.bad_examples("test", lambda line: None)
        assert len(list(inputs.eval_batches())) == 1 and bad.update(0) == 3
        if share == 0.14:
            bad.check(0, 3)
            continue
        message = "of 23 .*max_bad_share.*3 bad examples .*such as .*: "
        with pytest.raises(ValueError, match=message):
            bad.check(0, 3)


def test_max_bad_share_limits_the_count_of_one_epoch():
    source = data.arrays(np.zeros([20, 4, 4, 3], np.uint8), np.zeros(20, int), ["a"])
    bad = data.BadExamples(source, {}, None, batch_size=4, max_share=0.1)
    for step in range(50):  # two bad examples in each epoch of five steps
        bad.check(step, 2 * (step % 5 == 3))
    with pytest.raises(ValueError, match="Received: 3 bad examples in one epoch$"):
        bad.check(53, 3)


@pytest.mark.parametrize(("n", "batch_size"), [(50, 128), (150, 128), (1000, 128), (5, 5)])
def test_batches_may_span_epochs_with_the_allowed_share(n, batch_size):
    source = data.arrays(np.zeros([n, 1, 1, 3], np.uint8), np.zeros(n, int), ["a"])
    rng = np.random.default_rng(0)
    allowed = max(1, n // 100)

    def check(bad_images):
        positions = [e * n + rng.choice(n, bad_images, replace=False) for e in range(300)]
        counts = np.bincount(np.concatenate(positions) // batch_size)
        bad = data.BadExamples(source, {}, None, batch_size, max_share=0.01)
        for step, number in enumerate(counts.tolist()):
            bad.check(step, number, endless=True)

    check(allowed)
    with pytest.raises(ValueError, match=f"More than 1 % of {n} .* bad examples in one epoch"):
        check(3 * allowed)


def test_evaluation_with_padding_allows_only_one_share():
    source = data.arrays(np.zeros([50, 1, 1, 3], np.uint8), np.zeros(50, int), ["a"])
    with pytest.raises(ValueError, match="Received: 2 bad examples"):
        data.BadExamples(source, {}, None, 128).check(0, 2)


@pytest.mark.parametrize("max_share", [0.01, 0.0])
def test_positive_max_bad_share_allows_one_bad_example(max_share):
    source = data.arrays(np.zeros([20, 4, 4, 3], np.uint8), np.zeros(20, int), ["a"])
    bad = data.BadExamples(source, {}, None, batch_size=4, max_share=max_share)
    if max_share:
        bad.check(0, 1)
    with pytest.raises(ValueError, match=f"Received: {1 + (max_share > 0)} bad"):
        bad.check(1, 1)


def test_at_most_ten_bad_examples_are_logged():
    source = data.arrays(np.zeros([100, 4, 4, 3], np.uint8), np.zeros(100, int), ["a"])
    source = dataclasses.replace(source, read=None)
    logged = []
    bad = data.BadExamples(source, {0: list(range(100))}, None, batch_size=100, warn=logged.append)
    assert bad.update(0) == 100 and bad.update(0) == 0
    assert len(logged) == 10 and all("which gets weight 0" in line for line in logged)


def test_unlabeled_example_is_not_bad():
    source = data.arrays(np.zeros([4, 8, 8, 3], np.uint8), np.zeros(4, int), ["a"])
    source = dataclasses.replace(
        source,
        read=lambda i: {"image": tf.zeros([8, 8, 3], tf.uint8), "label": tf.range(i % 2)},
        empty_is_negative=False,
    )
    inputs = pipeline(source, 4, max_bad_share=0.0)
    bad, weights = count(inputs, "test", enumerate(inputs.eval_batches()), [])
    assert weights.tolist() == [0, 1, 0, 1] and bad.count == 0


def test_verify_finds_bad_files_duplicates_and_empty_classes(photos, broken, images_of):
    (photos / "bee" / "twin.jpg").write_bytes(images_of(0))
    (photos / "dog").mkdir()
    report = data.verify(data.folder(photos))
    assert set(report["bad"]) == set(report["reasons"]) == broken and report["examples"] == 24
    assert report["reasons"][str(photos / "cat" / "02.jpg")] == "the file is empty"
    assert report["duplicates"] == [
        [str(photos / "ant" / "00.jpg"), str(photos / "bee" / "twin.jpg")]
    ]
    assert report["empty_classes"] == ["dog"]


def test_verify_names_rotated_photos(photos):
    exif = Image.Exif()
    for name, orientation in (("bee/00", 6), ("bee/01", 1), ("cat/00", 3)):
        exif[0x0112] = orientation
        Image.new("RGB", (12, 8)).save(photos / f"{name}.jpg", exif=exif)
    assert data.verify(data.folder(photos))["rotated"] == [
        str(photos / "bee/00.jpg"),
        str(photos / "cat/00.jpg"),
    ]


def test_verify_returns_one_line_reasons_and_traces_once(photos, images_of, monkeypatch):
    png = tf.io.encode_png(
        np.random.default_rng(0).integers(0, 256, (20, 28, 3)).astype(np.uint8)
    ).numpy()
    bad = {
        "text": b"this is no image",
        "half.jpg": images_of(0)[:300],
        "half.png": png[: len(png) // 2],
        "flip.png": png[:200] + bytes([png[200] ^ 1]) + png[201:],
        "gif": b"GIF89a" + bytes(30),
        "bmp": b"BM" + bytes(20),
    }
    for name, content in bad.items():
        (photos / "cat" / f"{name}.{'png' if 'png' in name else 'jpg'}").write_bytes(content)
    for number in range(5):
        (photos / "bee" / f"good{number}.png").write_bytes(png)
    traces = []
    decode_pixels = examples.decode_pixels
    monkeypatch.setattr(
        examples,
        "decode_pixels",
        lambda *args, **kwargs: traces.append(1) or decode_pixels(*args, **kwargs),
    )
    report = data.verify(data.folder(photos))
    assert len(report["bad"]) == len(bad) and len(traces) == 1
    for reason in report["reasons"].values():
        assert not any(
            word in reason
            for word in ("function_node", "Graph execution", "File ", "\n", "Op:", "[[")
        ), reason
        assert any(
            word in reason
            for word in ("not an image in a known format", "Invalid PNG", "Invalid JPEG")
        ), reason


def test_verify_accepts_naflex_options(photos):
    options = {"max_patches": 4, "patch_size": 8, "train_crop": "inception"}
    assert data.verify(data.folder(photos), **options)["bad"] == []


def test_verify_bounds_the_image_size(photos):
    assert len(data.verify(data.folder(photos), max_megapixels=0.0005)["bad"]) == 23


def in_order(files, labels=None, missing=0):
    """Returns a source that is read in order. Its length includes `missing` examples that do not
    exist."""
    labels = labels or [[0]] * len(files)

    rows = tf.ragged.constant(labels, dtype=tf.int64, ragged_rank=1)

    def parse(record):
        index = tf.strings.to_number(record, tf.int64)
        return {"image": tf.gather(files, index), "label": tf.ensure_shape(rows[index], [None])}

    def open_shard(shard, skip):
        return tf.data.Dataset.range(skip, len(files)).map(tf.as_string)

    shards = Shards(np.array([len(files) + missing]), open_shard, parse)
    return data.Source(
        None, shards.num_examples, ("a", "b"), shards=shards, empty_is_negative=False
    )


def test_broken_record_counts_once_per_epoch(images_of):
    files = [b"no image" if number == 7 else images_of(number) for number in range(23)]
    inputs = pipeline(in_order(files), max_bad_share=1.5 / 23, shuffle_buffer=6)
    logged = []
    # Ten epochs.
    bad, weights = count(inputs, "train", enumerate(inputs.train_batches().take(46)), logged)
    assert bad.count == (weights == 0).sum() == 10
    assert logged[0] == "bad example 1, which gets weight 0: example 7: cannot be read"


def test_sequential_sources_report_bad_examples(images_of):
    files = [images_of(number) for number in range(9)]
    labels = [[0], []] * 4 + [[1, 0]]
    files[2] = b"no image"
    inputs = pipeline(in_order(files, labels, missing=2), batch_size=4)
    logged = []
    bad, weights = count(inputs, "test", enumerate(inputs.eval_batches()), logged)
    assert weights.tolist() == [1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0]
    assert bad.count == 3 and "example 2: cannot be read" in logged[0]
    assert [line.split(": ", 1)[1] for line in logged[1:]] == [
        f"example {i}: cannot be read" for i in (9, 10)
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


def test_successful_retry_keeps_the_example(photos):
    source, reads = flaky(data.folder(photos), {3: 1, 8: 1, 20: 1})
    inputs = pipeline(source)
    logged = []
    bad, weights = count(inputs, "test", enumerate(inputs.eval_batches()), logged)
    assert weights.tolist() == [1] * 23 + [0, 0] and bad.count == 0 and not logged
    assert reads[8] == reads[20] == 2


def test_threads_cause_no_warning_of_retracing(photos, caplog):
    data.verify(data.folder(photos))
    assert "retracing" not in caplog.text


@pytest.mark.parametrize(
    ("value", "dtype"), [(np.nan, "float32"), (np.inf, "float16"), (-np.inf, "float64")]
)
def test_pixel_that_is_not_finite_is_a_bad_example(value, dtype):
    images = np.ones((3, 8, 8, 3), dtype)
    images[1, 7, 7, 2] = value
    read = lambda i: {"image": tf.constant(images)[i], "label": tf.constant(0, tf.int64)}  # noqa: E731
    inputs = pipeline(
        data.Source(read, 3, ("a",), max_value=1), 3, image_size=4, train_crop="inception"
    )
    for split, batches in (
        ("train", inputs.train_batches().take(1)),
        ("test", inputs.eval_batches()),
    ):
        logged = []
        bad, weights = count(inputs, split, enumerate(batches), logged)
        assert bad.count == (weights == 0).sum() == 1 and all(
            np.isfinite(images).all() for images, *_ in batches
        )
        assert "example 1: " in logged[0] and "pixels must be finite" in logged[0]


def test_temporary_read_failures_are_reported(photos, broken):
    source, _ = flaky(data.folder(photos), {0: 2, 8: 2})
    inputs = pipeline(source)
    logged = []
    bad, weights = count(inputs, "test", enumerate(inputs.eval_batches()), logged)
    assert np.flatnonzero(weights[:23] == 0).tolist() == [0, 3, 8, 13, 21] and bad.count == 5
    named = [line for line in logged if "weight 0" in line]
    assert ["readable now" in line for line in named] == [True, False, True, False, False]


@pytest.mark.full
def test_each_host_counts_its_own_bad_examples(photos, broken):
    counts = []
    for host in range(2):
        inputs = pipeline(data.folder(photos), batch_size=6)
        bad, _ = count(
            inputs, "test", enumerate(inputs.eval_batches(num_hosts=2, host_index=host)), []
        )
        counts.append(bad.count)
    # The bad examples 3, 13 and 21 are at positions 3, 1 and 3 of their batches. Host 0 reads
    # positions 0 to 2.
    assert counts == [1, 2]
