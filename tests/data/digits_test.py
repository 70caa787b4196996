"""Tests of the digits dataset of scikit-learn."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from keras_vit import data

from .helpers import read_all


def test_digits_splits_are_a_stratified_partition_of_the_scans():
    train, test = data.load("digits")
    assert (train.num_examples, test.num_examples, train.max_value) == (1437, 360, 16)
    assert train.class_names == test.class_names == tuple("0123456789")
    assert np.bincount(test.labels).tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]
    examples = read_all(train) + read_all(test)
    images = np.stack([example["image"] for example in examples])
    np.testing.assert_array_equal(images[..., 0], images[..., 2])
    labels = np.array([example["label"] for example in examples])
    np.testing.assert_array_equal(labels[1437:], test.labels)
    scans = load_digits()
    # Weighted sums of pixels and label identify the scans in any order.
    sums = images[..., 0].reshape(1797, 64) @ range(1, 65) + 1e6 * labels
    expected = scans.data @ range(1, 65) + 1e6 * scans.target
    np.testing.assert_array_equal(np.sort(sums), np.sort(expected))


def test_digits_tuning_splits_divide_the_training_split():
    train, validation = data.load("digits", train_split="tune_train", test_split="tune_val")
    assert (train.num_examples, validation.num_examples) == (1150, 287)
    together = np.concatenate([train.labels, validation.labels])
    whole = data.load_split("digits", "train")
    np.testing.assert_array_equal(np.bincount(together), np.bincount(whole.labels))


def test_digits_subsets_are_balanced_and_nested():
    small, large = (data.load_split("digits", f"train[:{count}]") for count in (10, 104))
    assert sorted(small.labels) == list(range(10))
    counts = np.bincount(large.labels)
    assert counts.sum() == large.num_examples == 104 and set(counts) == {10, 11}
    small_images, large_images = (
        {example["image"].numpy().tobytes() for example in read_all(source)}
        for source in (small, large)
    )
    assert len(small_images) == 10 and small_images < large_images
    assert [int(example["label"]) for example in read_all(small)] == list(small.labels)
    with pytest.raises(ValueError, match="'train' has 1437 examples"):
        data.load_split("digits", "train[:2000]")
