"""Tests of batches: epochs, resuming, hosts, threads, mixing and broken examples."""

import dataclasses
import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import order
from keras_vit.data.sources.shards import Shards

N = 23


def numbered(n=N, classes=5):
    """Returns a source of 2x3 images whose pixels all equal the example's index."""
    images = np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None, None], (n, 2, 3, 3)).copy()
    return data.arrays(
        images, np.arange(n) % classes, [f"class {i}" for i in range(classes)], max_value=100
    )


def in_order(source, lengths=None, parse=None):
    """Returns a sequential source with shards of the given lengths. Each record is the index of an
    example."""
    lengths = np.array(
        lengths or [len(part) for part in np.array_split(range(source.num_examples), 4)], np.int64
    )
    ends = np.cumsum(lengths)

    def open_shard(shard, skip):
        start = tf.gather(ends - lengths, shard)
        end = tf.minimum(tf.gather(ends, shard), source.num_examples)
        return tf.data.Dataset.range(start + skip, end).map(tf.as_string)

    parse = parse or (lambda record: source.read(tf.strings.to_number(record, tf.int64)))
    shards = Shards(lengths, open_shard, parse)
    return dataclasses.replace(source, read=None, shards=shards, num_examples=int(ends[-1]))


def numbers(images):
    return np.round((np.asarray(images)[:, 0, 0, 0] + 1) * 50).astype(int)


def take(dataset, count):
    return [[part.numpy() for part in batch] for batch in dataset.take(count)]


def same(batches, others):
    assert len(batches) == len(others) > 0
    for batch, other in zip(batches, others):
        for part, other_part in zip(batch, other):
            np.testing.assert_array_equal(part, other_part)


KINDS = pytest.mark.parametrize("kind", [lambda s: s, in_order], ids=["by index", "in order"])
# Only a sequential source needs `image_size`.
SMALL = {
    "shuffle_buffer": 16,
    "threads": 2,
    "image_size": 2,
}

RESIZED = {**SMALL, "train_crop": "resize", "eval_crop": "resize", "flip": "off"}


def options(kind):
    return SMALL if kind is in_order else {"threads": 2}


@KINDS
def test_epochs_are_different_permutations(kind):
    source = kind(numbered())
    epochs = []
    stream = np.concatenate(
        [numbers(batch[0]) for batch in take(train(source, kind), 3 * N // 4 + 1)]
    )
    for epoch in range(3):
        epochs.append(stream[epoch * N : (epoch + 1) * N].tolist())
        assert sorted(epochs[-1]) == list(range(N))
    assert epochs[0] != epochs[1] != epochs[2] != list(range(N))


def train(source, kind, **kwargs):
    more = {
        "batch_size": 4,
        "seed": 1,
        "train_crop": "none",
        "eval_crop": "none",
        **options(kind),
        **kwargs,
    }
    if kind is in_order:
        # A sequential source does not know its image size, so resize to 2x2.
        more["train_crop"] = more["eval_crop"] = "resize"
    return data.train_batches(source, **more)


@KINDS
@pytest.mark.parametrize("start", [pytest.param(5, marks=pytest.mark.slow), 17])
def test_resumed_batches_match_the_uninterrupted_run(kind, start):
    source = kind(numbered())
    whole = {"mixup_alpha": 0.4, "cutmix_alpha": 1.0, "flip": "on", "shift": 1}
    same(
        take(train(source, kind, **whole), 20)[start:],
        take(train(source, kind, start_step=start, **whole), 20 - start),
    )


@KINDS
@pytest.mark.parametrize(
    "mixing",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"mixup_alpha": 0.4},
        pytest.param({"mixup_alpha": 0.4, "mixup_form": "reverse"}, marks=pytest.mark.slow),
        pytest.param({"cutmix_alpha": 1.0}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("hosts", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_hosts_divide_the_batches_of_one_host(kind, mixing, hosts):
    source = kind(numbered())
    one = take(train(source, kind, start_step=3, **mixing), 9)
    parts = [
        take(train(source, kind, start_step=3, num_hosts=hosts, host_index=i, **mixing), 9)
        for i in range(hosts)
    ]
    together = [[np.concatenate(part) for part in zip(*batches)] for batches in zip(*parts)]
    same(one, together)


def test_batches_do_not_depend_on_threads_or_global_seed():
    for kind in (lambda s: s, in_order):
        tf.random.set_seed(1)
        one = take(train(kind(numbered()), kind, threads=1), 12)
        tf.random.set_seed(2)
        same(one, take(train(kind(numbered()), kind, threads=5), 12))


def test_order_depends_on_seed():
    for kind in (lambda s: s, in_order):
        orders = [
            np.concatenate([numbers(b[0]) for b in take(train(kind(numbered()), kind, seed=s), 5)])
            for s in (0, 1)
        ]
        assert orders[0].tolist() != orders[1].tolist()


@KINDS
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("n", [1, 8, 23])
def test_evaluation_covers_every_example_once(kind, n, hosts):
    source = kind(numbered(n))
    more = {"image_size": 2, "eval_crop": "resize"} if kind is in_order else {}
    seen = []
    batches = []
    for host in range(hosts):
        batch = list(
            data.eval_batches(source, batch_size=8, num_hosts=hosts, host_index=host, **more)
        )
        batches.append(len(batch))
        for images, labels, weights in batch:
            assert images.shape[0] == labels.shape[0] == weights.shape[0] == 8 // hosts
            real = weights.numpy() > 0
            seen += numbers(images[real]).tolist()
            np.testing.assert_array_equal(np.argmax(labels[real], 1), numbers(images[real]) % 5)
            assert set(weights.numpy()) <= {0.0, 1.0}
    assert sorted(seen) == list(range(n))
    assert batches == [-(-n // 8)] * hosts
    if hosts == 1:
        assert seen == [number for number in data.evaluation_order(source, 8)]


def test_images_keep_their_labels_and_are_float32():
    for images, labels, weights in take(data.train_batches(numbered(), batch_size=4, seed=0), 6):
        assert images.dtype == labels.dtype == weights.dtype == np.float32
        np.testing.assert_array_equal(labels.argmax(-1), numbers(images) % 5)
        np.testing.assert_array_equal(images, np.broadcast_to(images[:, :1, :1, :1], images.shape))
        assert labels.sum(-1).tolist() == weights.tolist() == [1] * 4


def test_shift_pads_with_black():
    image = np.zeros((1, 5, 5, 3), np.uint8)
    image[0, 2, 2] = 10
    source = data.arrays(image, [0], ["dot"], max_value=10)
    images = np.concatenate(
        [b[0] for b in take(data.train_batches(source, batch_size=20, seed=0, shift=1), 10)]
    )
    bright = {tuple(np.argwhere(one[..., 0] == 1)[0]) for one in images}
    assert bright == {(row, column) for row in (1, 2, 3) for column in (1, 2, 3)}
    assert set(np.unique(images)) == {-1, 1}


@KINDS
def test_prefetch_reads_at_most_two_extra_batches(kind):
    intact = numbered(90)
    condition = threading.Condition()
    highest = [-1]

    def note(index):
        with condition:
            highest[0] += 1  # counts reads, starting at -1
            condition.notify_all()
        return index

    def read(index):
        return intact.read(tf.ensure_shape(tf.numpy_function(note, [index], tf.int64), []))

    def encoded(index):
        return read(index) | {"image": tf.io.encode_png(tf.zeros([2, 2, 3], tf.uint8))}

    if kind is in_order:
        source = in_order(
            dataclasses.replace(intact, max_value=255),
            parse=lambda record: encoded(tf.strings.to_number(record, tf.int64)),
        )
    else:
        source = dataclasses.replace(intact, read=read)
    crops = {"image_size": 2, "eval_crop": "resize"}
    batches = iter(data.eval_batches(source, batch_size=2, prefetch=3, threads=4, **crops))
    for taken in range(1, 40):
        next(batches)
        with condition:
            assert condition.wait_for(lambda: highest[0] >= 2 * (taken + 3) - 1, timeout=60)  # noqa: B023
            assert highest[0] < 2 * (taken + 3 + 2)


def test_shapes_are_static():
    for batches in (
        data.train_batches(numbered(), batch_size=4, seed=0, mixup_alpha=0.2),
        data.eval_batches(numbered(), batch_size=4),
    ):
        assert [part.shape.as_list() for part in batches.element_spec] == [
            [4, 2, 3, 3],
            [4, 5],
            [4],
        ]


def test_mixup_partners_come_from_the_rolled_batch():
    plain = take(data.train_batches(numbered(), batch_size=6, seed=2), 8)
    mixed = take(data.train_batches(numbered(), batch_size=6, seed=2, mixup_alpha=0.5), 8)
    shares = []
    for (images, labels, _), (mixed_images, mixed_labels, weights) in zip(plain, mixed):
        step = (mixed_images - np.roll(images, 1, 0)) / np.where(
            images == np.roll(images, 1, 0), np.nan, images - np.roll(images, 1, 0)
        )
        share = np.nanmedian(step)
        np.testing.assert_allclose(
            mixed_images, share * images + (1 - share) * np.roll(images, 1, 0), atol=1e-5
        )
        np.testing.assert_allclose(
            mixed_labels, share * labels + (1 - share) * np.roll(labels, 1, 0), atol=1e-5
        )
        np.testing.assert_allclose(mixed_labels.sum(1), 1, rtol=1e-6)
        assert weights.tolist() == [1] * 6
        shares.append(share)
    assert len({round(float(share), 4) for share in shares}) == 8 and min(shares) >= 0.5


@pytest.fixture(scope="module")
def png_source():
    pixels = np.random.default_rng(0).integers(0, 256, (N, 6, 7, 3)).astype(np.uint8)
    intact = numbered()
    files = [tf.io.encode_png(image).numpy() for image in pixels]
    read = lambda i: intact.read(i) | {"image": tf.gather(files, i)}  # noqa: E731
    return dataclasses.replace(intact, read=read, max_value=255, options={})


def test_options_equal_their_fields(png_source):
    train = {"flip": "off", "image_size": 8}
    evaluate = {"augreg": "medium1", "image_size": 8}
    for make, fields, more in (
        (data.train_batches, train, {"seed": 1}),
        (data.eval_batches, evaluate, {}),
    ):
        expected = take(make(png_source, batch_size=4, **fields, **more), 1)
        same(
            expected,
            take(make(png_source, batch_size=4, options=data.Options(**fields), **more), 1),
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"flip": "off", "image_size": 8},
        {"augreg": "light1", "image_size": 64},
        {
            "image_size": 4,
            "resize_size": 6,
            "train_crop": "resize_crop",
            "eval_crop": "resize_small_crop",
        },
        {"max_patches": 4, "patch_size": 2},
    ],
)
def test_resolved_options_do_not_change_again(fields, png_source):
    for source in (png_source, numbered()):
        options = data.Options(**fields).resolve(source)
        assert options.resolve(source) == options


def test_label_smoothing_is_uniform_over_classes():
    plain = take(data.train_batches(numbered(), batch_size=6, seed=2), 1)[0][1]
    smooth = take(data.train_batches(numbered(), batch_size=6, seed=2, label_smoothing=0.2), 1)[0][
        1
    ]
    np.testing.assert_allclose(smooth, 0.8 * plain + 0.04, rtol=1e-6)


def breaking(source, broken):
    """Returns a source in which every read of a `broken` example fails."""

    def read(index):
        bad = tf.reduce_any(index == tf.constant(broken, tf.int64))
        with tf.control_dependencies(
            [tf.raw_ops.Assert(condition=~bad, data=["broken on purpose"])]
        ):
            return {key: tf.identity(value) for key, value in source.read(index).items()}

    return dataclasses.replace(source, read=read)


def breaking_in_order(source, broken):
    encoded = [
        b"no image" if i in broken else tf.io.encode_png(np.full((2, 2, 3), i, np.uint8)).numpy()
        for i in range(N)
    ]

    def read(index):
        return {"image": tf.gather(encoded, index), "label": tf.gather(source.labels, index)}

    # One reader reads both shards.
    return in_order(dataclasses.replace(source, read=read, max_value=255), [11, 12])


@pytest.mark.parametrize(
    ("broken", "threads"),
    [
        ([0, 1, 2, 21, 22], 3),
        (list(range(1, 23)), 3),
        pytest.param([1], 3, marks=pytest.mark.slow),
        pytest.param([22], 3, marks=pytest.mark.slow),
        pytest.param([0, 1, 2, 21, 22], 1, marks=pytest.mark.slow),
        pytest.param(list(range(1, 23)), 1, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_broken_example_does_not_change_other_examples(broken, threads):
    intact = numbered()
    source = breaking(numbered(), broken)
    for make in (
        lambda s: data.train_batches(s, batch_size=4, seed=1, threads=threads),
        lambda s: data.eval_batches(s, batch_size=4, threads=threads),
    ):
        for (images, labels, weights), (whole, all_labels, _) in zip(
            take(make(source), 6), take(make(intact), 6)
        ):
            good = weights > 0
            np.testing.assert_array_equal(images[good], whole[good])
            np.testing.assert_array_equal(labels[good], all_labels[good])
            assert not images[~good].any() and not labels[~good].any()
            real = all_labels.any(1)
            assert set(numbers(whole[real & ~good])) <= set(broken)
            assert not set(numbers(whole[good])) & set(broken)


@pytest.mark.full
def test_broken_record_does_not_change_other_records():
    broken = [0, 1, 21, 22]
    some = {"image_size": 2, "eval_crop": "resize", "train_crop": "resize"}
    intact = breaking_in_order(numbered(), [])
    source = breaking_in_order(numbered(), broken)
    whole = take(data.eval_batches(intact, batch_size=4, **some), 6)
    for (images, _, weights), (all_images, _, real) in zip(
        take(data.eval_batches(source, batch_size=4, **some), 6), whole
    ):
        np.testing.assert_array_equal(images[weights > 0], all_images[weights > 0])
        index = np.round((all_images[:, 0, 0, 0] + 1) * 127.5).astype(int)
        assert set(index[(real > 0) & (weights == 0)]) == set(broken) & set(index[real > 0])
    batches = [
        take(data.train_batches(s, batch_size=4, seed=1, **some), 6) for s in (intact, source)
    ]
    lost = 0
    for (all_images, *_), (images, _, weights) in zip(*batches):
        np.testing.assert_array_equal(images[weights > 0], all_images[weights > 0])
        lost += (weights == 0).sum()
    # The 24 examples read are one more than an epoch has.
    assert lost in (
        len(broken),
        len(broken) + 1,
    )


def test_mixup_skips_broken_partners():
    source = breaking(numbered(), list(range(0, N, 3)))
    plain = take(data.train_batches(source, batch_size=6, seed=2), 8)
    mixed = take(data.train_batches(source, batch_size=6, seed=2, mixup_alpha=0.5), 8)
    alone = 0
    for (images, labels, weights), (mixed_images, mixed_labels, mixed_weights) in zip(plain, mixed):
        np.testing.assert_array_equal(weights, mixed_weights)
        kept = (weights > 0) & (np.roll(weights, 1) == 0)
        alone += kept.sum()
        np.testing.assert_allclose(mixed_images[kept], images[kept], atol=1e-6)
        np.testing.assert_allclose(mixed_labels[kept], labels[kept], atol=1e-6)
        assert not mixed_labels[weights == 0].any()
        np.testing.assert_allclose(mixed_labels[weights > 0].sum(1), 1, rtol=1e-6)
    assert alone > 3


@pytest.mark.parametrize("label", [5, -1])
@KINDS
def test_label_out_of_range_is_an_error_that_names_the_example(kind, label):
    good = numbered()

    def read(index):
        example = good.read(index)
        return example | {
            "label": tf.where(index == 3, tf.constant(label, tf.int64), example["label"])
        }

    source = kind(dataclasses.replace(good, read=read))
    batches = data.train_batches(source, batch_size=8, seed=0, **RESIZED)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="must be from 0 to 4.*Received: .*example 3"
    ):
        list(batches.take(6))
    inputs = data.InputPipeline(source, source, RESIZED, 8, 0, 1.0)
    bad = inputs.bad_examples("test", lambda line: None)
    with pytest.raises(ValueError, match="must be from 0 to 4.*Received: .*example 3"):
        for step, _ in enumerate(inputs.eval_batches()):
            bad.update(step)


@pytest.mark.parametrize("negative", [True, False])
@KINDS
def test_empty_label_is_negative_or_missing(kind, negative):
    good = numbered()

    def read(index):
        return good.read(index) | {"label": tf.range(index % 3)}

    source = kind(dataclasses.replace(good, read=read, empty_is_negative=negative))
    expected = np.array([[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]])
    for images, labels, weights in take(data.eval_batches(source, batch_size=3, **RESIZED), 7):
        rows = numbers(images) % 3
        np.testing.assert_array_equal(labels, expected[rows])
        np.testing.assert_array_equal(weights, (rows > 0) | negative)
    smooth = data.train_batches(source, batch_size=3, seed=0, label_smoothing=0.5, **RESIZED)
    for images, labels, weights in take(smooth, 7):
        rows = numbers(images) % 3
        np.testing.assert_allclose(
            labels, (0.5 * expected + 0.1 * (expected.max(1, keepdims=True) > 0))[rows]
        )
        np.testing.assert_array_equal(weights, (rows > 0) | negative)


def test_missing_records_have_weight_0_in_every_epoch():
    short = in_order(numbered(), [N + 2])  # a single shard is evaluated in storage order
    weights = [
        b[2]
        for b in take(data.eval_batches(short, batch_size=5, image_size=2, eval_crop="resize"), 6)
    ]
    assert np.flatnonzero(np.concatenate(weights) == 0).tolist() == [23, 24]
    batches = take(train(short, in_order, batch_size=5), 10)
    images = np.concatenate([b[0] for b in batches])
    weights = np.concatenate([b[2] for b in batches])
    for part in (slice(0, 25), slice(25, 50)):
        assert sorted(numbers(images[part][weights[part] > 0])) == list(range(N))


def test_unit_range_images_are_scaled_before_rounding():
    png = tf.io.encode_png(np.uint8([[[0], [1]], [[0], [0]]]))
    read = lambda i: {"image": tf.identity(png), "label": tf.constant(0, tf.int64)}  # noqa: E731
    source = data.Source(read, 1, ("a",), max_value=1)
    ((images, *_),) = data.eval_batches(source, batch_size=1, image_size=4, rounding="uint8")
    row = [0, 63, 191, 255]  # bilinear values between 0 and 255, truncated
    np.testing.assert_allclose(images[0, 0, :, 0], (np.array(row) - 127.5) / 127.5, atol=1e-6)
    assert images.shape == (1, 4, 4, 3)


def test_index_at_returns_the_epoch_of_a_position():
    epoch, index = order.index_at(tf.constant(10**5 * 1024, tf.int64), 10**6, 0)
    assert epoch == 102 and 0 <= index < 10**6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"batch_size": 6, "num_hosts": 4},
            "must be a positive multiple of `num_hosts`.*num_hosts=4",
        ),
        ({"batch_size": 8, "num_hosts": 4, "host_index": 4}, "host_index=4"),
        ({"batch_size": 8, "seed": -1}, "seed=-1"),
        ({"batch_size": 8, "train_crop": "centre"}, "train_crop.*'centre'"),
        ({"batch_size": 8, "label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"batch_size": 8, "augreg": "medium1", "mixup_alpha": 0.1}, "augreg='medium1'"),
        ({"batch_size": 8, "image_size": 4, "train_crop": "resize_small_crop"}, "resize_size=0"),
        ({"batch_size": 8, "train_crop": "inception"}, "image_size=0"),
        (
            {
                "batch_size": 8,
                "image_size": 100,
                "randaugment_layers": 2,
                "randaugment_form": "original",
            },
            "of 100 pixels.*randaugment_form='original'",
        ),
    ],
)
def test_rejects_bad_batch_arguments(wrong, message):
    with pytest.raises(ValueError, match=message):
        data.train_batches(numbered(), **{"seed": 0, **wrong})
