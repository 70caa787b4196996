"""Tests of training and evaluation batches: order, resuming, hosts, mixing and options."""

import dataclasses
import queue

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data

from .helpers import (
    KINDS,
    assert_same_batches,
    by_index,
    in_order,
    numbered,
    numbers_of,
    png,
    source_of,
    take,
)

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
def test_epochs_are_permutations_that_depend_on_the_seed_only(kind):
    source = kind(numbered())
    num_steps = 3 * N // 4 + 1
    tf.random.set_seed(1)
    batches = take(train(source, threads=1), num_steps)
    stream = stream_of(batches)
    epochs = [stream[epoch * N : (epoch + 1) * N].tolist() for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(N)) != epoch
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    tf.random.set_seed(2)
    assert_same_batches(batches, take(train(source, threads=5), num_steps))
    assert (stream_of(take(train(source, seed=2), 5)) != stream[:20]).any()


@KINDS
def test_resumed_batches_match_the_uninterrupted_run(kind):
    source = kind(numbered())
    options = {"mixup_alpha": 0.4, "cutmix_alpha": 1.0, "flip": "on", "shift": 1}
    whole = take(train(source, **options), 20)
    resumed = take(train(source, start_step=17, **options), 3)
    assert_same_batches(resumed, whole[17:])


@pytest.mark.parametrize(
    ("kind", "mixing"),
    [
        (in_order, {"mixup_alpha": 0.4}),
        (by_index, {"mixup_alpha": 0.4, "cutmix_alpha": 1.0, "mixup_form": "reverse"}),
    ],
)
def test_hosts_divide_the_batches_of_one_host(kind, mixing):
    source = kind(numbered())
    one_host = take(train(source, start_step=3, **mixing), 9)
    batches_of_hosts = [
        take(train(source, start_step=3, num_hosts=2, host_index=host, **mixing), 9)
        for host in (0, 1)
    ]
    together = [
        [np.concatenate(parts) for parts in zip(*batches)] for batches in zip(*batches_of_hosts)
    ]
    assert_same_batches(together, one_host)


@KINDS
@pytest.mark.parametrize(("n", "hosts"), [(1, 2), (8, 2), (23, 1)])
def test_evaluation_covers_every_example_once(kind, n, hosts):
    source = kind(numbered(n))
    seen = []
    for host in range(hosts):
        batches = data.eval_batches(
            source, batch_size=8, num_hosts=hosts, host_index=host, **RESIZED
        )
        images, labels, weights = (np.concatenate(parts) for parts in zip(*batches))
        assert len(weights) == -(-n // 8) * 8 // hosts
        numbers = numbers_of(images[weights == 1])
        np.testing.assert_array_equal(labels[weights == 1], np.eye(5)[numbers % 5])
        assert not labels[weights < 1].any()
        seen += numbers.tolist()
    assert sorted(seen) == list(range(n))
    if hosts == 1:
        assert seen == list(data.evaluation_order(source, 8))


def test_images_keep_their_labels_and_are_float32():
    batches = data.train_batches(numbered(), batch_size=4, seed=0)
    spec = [(part.shape, part.dtype) for part in batches.element_spec]
    assert spec == [(shape, "float32") for shape in [(4, 2, 3, 3), (4, 5), (4,)]]
    for images, labels, weights in take(batches, 6):
        np.testing.assert_array_equal(labels, np.eye(5)[numbers_of(images) % 5])
        np.testing.assert_array_equal(images, np.broadcast_to(images[:, :1, :1, :1], images.shape))
        assert weights.tolist() == [1] * 4


def test_shift_pads_with_black():
    source = data.arrays(np.full((1, 5, 5, 3), 10, np.uint8), [0], ["white"], max_value=10)
    ((images, *_),) = take(data.train_batches(source, batch_size=20, seed=0, shift=1), 1)
    assert set(np.unique(images)) == {-1, 1}


@KINDS
def test_prefetch_reads_at_most_two_extra_batches(kind):
    images = numbered(90)
    reads = queue.SimpleQueue()

    def note(index):
        reads.put(index)
        return index

    def read(index):
        return images.read(tf.ensure_shape(tf.numpy_function(note, [index], tf.int64), []))

    def wait_for_batches(count):
        for _ in range(2 * count):
            reads.get(timeout=60)

    source = kind(dataclasses.replace(images, read=read))
    batches = iter(data.eval_batches(source, batch_size=2, prefetch=3, threads=4, **RESIZED))
    next(batches)
    wait_for_batches(1 + 3)
    for _ in range(38):
        next(batches)
        wait_for_batches(1)
        assert reads.qsize() <= 2 * 2


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


@pytest.mark.parametrize(
    "fields",
    [
        {"image_size": 8},
        {"image_size": 64, "augreg": "light1"},
        {"max_patches": 4, "patch_size": 2, "augreg": "light1"},
    ],
)
def test_resolved_options_do_not_change_again(fields):
    arrays = numbered()
    files = dataclasses.replace(arrays, max_value=255, options={})
    for source in (arrays, files):
        options = data.Options(**fields).resolve(source)
        assert options.resolve(source) == options


@pytest.mark.parametrize("make_batches", [data.train_batches, data.eval_batches])
def test_fields_replace_those_of_options(make_batches):
    options = data.Options(image_size=4, channels=3)
    seed = {"seed": 0} if make_batches is data.train_batches else {}
    batches = make_batches(numbered(), batch_size=2, options=options, image_size=6, **seed)
    assert batches.element_spec[0].shape == (2, 6, 6, 3)


def test_naflex_refuses_other_ways_of_resizing():
    with pytest.raises(ValueError, match="only resized.*Received: interpolation="):
        data.Options(max_patches=4, interpolation="bicubic").resolve(numbered())


def test_unit_range_images_are_scaled_before_rounding():
    source = source_of([png(np.uint8([[[0], [1]], [[0], [0]]]))], max_value=1)
    ((images, *_),) = data.eval_batches(source, batch_size=1, image_size=4, rounding="uint8")
    # The bilinear values between 0 and 255, truncated.
    first_row = np.array([0, 63, 191, 255])
    np.testing.assert_allclose(images[0, 0, :, 0], (first_row - 127.5) / 127.5, atol=1e-6)
    assert images.shape == (1, 4, 4, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 6, "num_hosts": 4}, "multiple of `num_hosts`"),
        ({"num_hosts": 4, "host_index": 4}, "host_index=4"),
        ({"seed": -1}, "seed=-1"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"augreg": "medium1", "mixup_alpha": 0.1}, "augreg='medium1'"),
        ({"augreg": "medium1", "randaugment_magnitude": 12.0}, "randaugment_magnitude=12"),
        ({"image_size": 4, "train_crop": "resize_small_crop"}, "resize_size=0"),
        ({"image_size": 4, "train_crop": "none"}, "the source's size, 2x3"),
        (
            {"image_size": 100, "randaugment_layers": 2, "randaugment_form": "original"},
            "randaugment_form='original'",
        ),
    ],
)
def test_rejects_bad_batch_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.train_batches(numbered(), **{"batch_size": 8, "seed": 0, **arguments})
