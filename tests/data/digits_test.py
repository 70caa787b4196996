"""Tests of the digits dataset of scikit-learn."""

import numpy as np
import pytest

from keras_vit import data


def test_digits_split_is_stratified():
    train, test = data.load("digits")
    assert (train.num_examples, test.num_examples) == (1437, 360)
    assert train.class_names == test.class_names == tuple("0123456789")
    counts = np.bincount([int(test.read(i)["label"]) for i in range(360)])
    assert counts.min() >= 34 and counts.max() <= 38


def test_digits_splits_partition_the_scans():
    from sklearn.datasets import load_digits

    parts = [
        np.stack([source.read(i)["image"] for i in range(source.num_examples)])
        for source in data.load("digits")
    ]
    together = np.concatenate(parts)[..., 0].reshape(1797, -1)
    scans = load_digits().data
    np.testing.assert_array_equal(np.sort(together.dot(range(64))), np.sort(scans.dot(range(64))))


def test_digits_tuning_splits_divide_the_training_split():
    train, validation = data.load("digits", train_split="tune_train", test_split="tune_val")
    assert (train.num_examples, validation.num_examples) == (1150, 287)
    together = np.concatenate([train.labels, validation.labels])
    whole = data.load_split("digits", "train")
    np.testing.assert_array_equal(np.bincount(together), np.bincount(whole.labels))
    with pytest.raises(
        ValueError, match="The splits of digits are train, test, tune_train.*Received"
    ):
        data.load_split("digits", "validation")


def test_digits_subsets_are_balanced_and_nested():
    few, more = (data.load_split("digits", f"train[:{count}]") for count in (10, 104))
    assert sorted(few.labels) == list(range(10))
    counts = np.bincount(more.labels)
    assert counts.sum() == more.num_examples == 104 and set(counts) == {10, 11}
    images = {more.read(i)["image"].numpy().tobytes() for i in range(104)}
    assert all(few.read(i)["image"].numpy().tobytes() in images for i in range(10))
    assert [int(few.read(i)["label"]) for i in range(10)] == list(few.labels)
    with pytest.raises(ValueError, match="'train' has 1437 examples. Received: split='train"):
        data.load_split("digits", "train[:2000]")


def test_pixels_are_scaled_in_three_equal_channels():
    _, test = data.load("digits")
    images, labels, weights = next(iter(data.eval_batches(test, batch_size=360)))
    pixels = np.stack([test.read(i)["image"] for i in range(360)])
    np.testing.assert_array_equal(images, pixels / 8 - 1)
    np.testing.assert_array_equal(pixels[..., 0], pixels[..., 2])
    assert pixels.max() == 16 and pixels.min() == 0
    assert labels.shape == (360, 10) and weights.numpy().all()


def test_unknown_dataset_error_lists_known_names():
    with pytest.raises(ValueError, match="must be one of digits.*Received: name='mnist'"):
        data.load("mnist")
