"""Tests of training and evaluation batches: order, resuming, hosts, mixing and options."""

import dataclasses
import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data

from .helpers import KINDS, assert_same_batches, numbered, numbers_of, png, take

N = 23
# A sequential source does not know its image size, so all tests of both kinds resize to 2x2 pixels.
RESIZED = {"image_size": 2, "train_crop": "resize", "eval_crop": "resize"}


def train(source, **fields):
    fields = {"batch_size": 4, "seed": 1, "shuffle_buffer": 16, "threads": 2, **RESIZED, **fields}
    return data.train_batches(source, **fields)


def stream_of(batches):
    """Returns the indices of all images of batches of `numbered`, in order."""
    return np.concatenate([numbers_of(images) for images, *_ in batches])


@KINDS
def test_epochs_are_different_permutations(kind):
    stream = stream_of(take(train(kind(numbered())), 3 * N // 4 + 1))
    epochs = [stream[epoch * N : (epoch + 1) * N].tolist() for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(N)) != epoch
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@KINDS
@pytest.mark.parametrize("start", [pytest.param(5, marks=pytest.mark.slow), 17])
def test_resumed_batches_match_the_uninterrupted_run(kind, start):
    source = kind(numbered())
    options = {"mixup_alpha": 0.4, "cutmix_alpha": 1.0, "flip": "on", "shift": 1}
    whole = take(train(source, **options), 20)
    resumed = take(train(source, start_step=start, **options), 20 - start)
    assert_same_batches(resumed, whole[start:])


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
    one_host = take(train(source, start_step=3, **mixing), 9)
    batches_of_hosts = [
        take(train(source, start_step=3, num_hosts=hosts, host_index=host, **mixing), 9)
        for host in range(hosts)
    ]
    together = [
        [np.concatenate(parts) for parts in zip(*batches)] for batches in zip(*batches_of_hosts)
    ]
    assert_same_batches(together, one_host)


@KINDS
def test_batches_do_not_depend_on_threads_or_global_seed(kind):
    tf.random.set_seed(1)
    batches = take(train(kind(numbered()), threads=1), 12)
    tf.random.set_seed(2)
    assert_same_batches(batches, take(train(kind(numbered()), threads=5), 12))


@KINDS
def test_order_depends_on_seed(kind):
    orders = [stream_of(take(train(kind(numbered()), seed=seed), 5)).tolist() for seed in (0, 1)]
    assert orders[0] != orders[1]


@KINDS
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("n", [1, 8, 23])
def test_evaluation_covers_every_example_once(kind, n, hosts):
    source = kind(numbered(n))
    seen = []
    for host in range(hosts):
        batches = list(
            data.eval_batches(source, batch_size=8, num_hosts=hosts, host_index=host, **RESIZED)
        )
        assert len(batches) == -(-n // 8)
        for images, labels, weights in batches:
            assert images.shape[0] == labels.shape[0] == weights.shape[0] == 8 // hosts
            assert set(weights.numpy()) <= {0.0, 1.0}
            is_real = weights.numpy() > 0
            numbers = numbers_of(images[is_real])
            np.testing.assert_array_equal(np.argmax(labels[is_real], 1), numbers % 5)
            seen += numbers.tolist()
    assert sorted(seen) == list(range(n))
    if hosts == 1:
        assert seen == list(data.evaluation_order(source, 8))


def test_images_keep_their_labels_and_are_float32():
    for images, labels, weights in take(data.train_batches(numbered(), batch_size=4, seed=0), 6):
        assert images.dtype == labels.dtype == weights.dtype == np.float32
        np.testing.assert_array_equal(labels.argmax(-1), numbers_of(images) % 5)
        np.testing.assert_array_equal(images, np.broadcast_to(images[:, :1, :1, :1], images.shape))
        assert labels.sum(-1).tolist() == weights.tolist() == [1] * 4


def test_shift_pads_with_black():
    image = np.zeros((1, 5, 5, 3), np.uint8)
    image[0, 2, 2] = 10
    source = data.arrays(image, [0], ["dot"], max_value=10)
    batches = take(data.train_batches(source, batch_size=20, seed=0, shift=1), 10)
    images = np.concatenate([images for images, *_ in batches])
    places = {tuple(np.argwhere(image[..., 0] == 1)[0]) for image in images}
    assert places == {(row, column) for row in (1, 2, 3) for column in (1, 2, 3)}
    assert set(np.unique(images)) == {-1, 1}


class ReadCounter:
    """Counts the examples that a source reads."""

    def __init__(self):
        self.count = 0
        self.condition = threading.Condition()

    def counted(self, source):
        """Returns a source with black PNGs as images, of which every read is counted."""

        def count(index):
            with self.condition:
                self.count += 1
                self.condition.notify_all()
            return index

        def read(index):
            index = tf.ensure_shape(tf.numpy_function(count, [index], tf.int64), [])
            return source.read(index) | {"image": tf.io.encode_png(tf.zeros([2, 2, 3], tf.uint8))}

        return dataclasses.replace(source, read=read, max_value=255)

    def wait_for(self, count):
        with self.condition:
            assert self.condition.wait_for(lambda: self.count >= count, timeout=60)


@KINDS
def test_prefetch_reads_at_most_two_extra_batches(kind):
    counter = ReadCounter()
    source = kind(counter.counted(numbered(90)))
    options = {"image_size": 2, "eval_crop": "resize"}
    batches = iter(data.eval_batches(source, batch_size=2, prefetch=3, threads=4, **options))
    for taken in range(1, 40):
        next(batches)
        counter.wait_for(2 * (taken + 3))
        assert counter.count <= 2 * (taken + 3 + 2)


@pytest.mark.parametrize(
    "batches",
    [
        data.train_batches(numbered(), batch_size=4, seed=0, mixup_alpha=0.2),
        data.eval_batches(numbered(), batch_size=4),
    ],
    ids=["training", "evaluation"],
)
def test_shapes_are_static(batches):
    shapes = [part.shape.as_list() for part in batches.element_spec]
    assert shapes == [[4, 2, 3, 3], [4, 5], [4]]


def test_mixup_partners_come_from_the_rolled_batch():
    plain = take(data.train_batches(numbered(), batch_size=6, seed=2), 8)
    mixed = take(data.train_batches(numbered(), batch_size=6, seed=2, mixup_alpha=0.5), 8)
    shares = []
    for (images, labels, _), (mixed_images, mixed_labels, weights) in zip(plain, mixed):
        partners = np.roll(images, 1, 0)
        differs = images != partners
        share = np.median((mixed_images - partners)[differs] / (images - partners)[differs])
        np.testing.assert_allclose(mixed_images, share * images + (1 - share) * partners, atol=1e-5)
        np.testing.assert_allclose(
            mixed_labels, share * labels + (1 - share) * np.roll(labels, 1, 0), atol=1e-5
        )
        assert weights.tolist() == [1] * 6
        shares.append(share)
    # Each batch has its own share, and the larger share is that of the image itself.
    assert len({round(float(share), 4) for share in shares}) == 8 and min(shares) >= 0.5


@pytest.fixture(scope="module")
def png_source():
    """Returns a source of PNGs of 6x7 pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (N, 6, 7, 3)).astype(np.uint8)
    files = [png(image) for image in pixels]
    intact = numbered()

    def read(index):
        return intact.read(index) | {"image": tf.gather(files, index)}

    return dataclasses.replace(intact, read=read, max_value=255, options={})


@pytest.mark.parametrize(
    ("make", "fields", "arguments"),
    [
        (data.train_batches, {"flip": "off", "image_size": 8}, {"seed": 1}),
        (data.eval_batches, {"augreg": "medium1", "image_size": 8}, {}),
    ],
)
def test_options_equal_their_fields(make, fields, arguments, png_source):
    expected = take(make(png_source, batch_size=4, **fields, **arguments), 1)
    batches = make(png_source, batch_size=4, options=data.Options(**fields), **arguments)
    assert_same_batches(take(batches, 1), expected)


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
    ((_, plain, _),) = take(data.train_batches(numbered(), batch_size=6, seed=2), 1)
    smoothed = data.train_batches(numbered(), batch_size=6, seed=2, label_smoothing=0.2)
    ((_, labels, _),) = take(smoothed, 1)
    np.testing.assert_allclose(labels, 0.8 * plain + 0.2 / 5, rtol=1e-6)


def test_unit_range_images_are_scaled_before_rounding():
    file = png(np.uint8([[[0], [1]], [[0], [0]]]))

    def read(index):
        return {"image": tf.identity(file), "label": tf.constant(0, tf.int64)}

    source = data.Source(read, 1, ("a",), max_value=1)
    ((images, *_),) = data.eval_batches(source, batch_size=1, image_size=4, rounding="uint8")
    # The bilinear values between 0 and 255, truncated.
    first_row = np.array([0, 63, 191, 255])
    np.testing.assert_allclose(images[0, 0, :, 0], (first_row - 127.5) / 127.5, atol=1e-6)
    assert images.shape == (1, 4, 4, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"batch_size": 6, "num_hosts": 4},
            "must be a positive multiple of `num_hosts`.*num_hosts=4",
        ),
        ({"num_hosts": 4, "host_index": 4}, "host_index=4"),
        ({"seed": -1}, "seed=-1"),
        ({"train_crop": "centre"}, "train_crop.*'centre'"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"augreg": "medium1", "mixup_alpha": 0.1}, "augreg='medium1'"),
        ({"image_size": 4, "train_crop": "resize_small_crop"}, "resize_size=0"),
        ({"train_crop": "inception"}, "image_size=0"),
        (
            {"image_size": 100, "randaugment_layers": 2, "randaugment_form": "original"},
            "of 100 pixels.*randaugment_form='original'",
        ),
    ],
)
def test_rejects_bad_batch_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.train_batches(numbered(), **{"batch_size": 8, "seed": 0, **arguments})
