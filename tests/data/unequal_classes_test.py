"""Tests of class weights and balanced sampling."""

import dataclasses

import numpy as np
import pytest

from keras_vit import data

from .helpers import assert_same_batches, in_order, take

COUNTS = {"rare": 2, "usual": 3, "common": 7}
# The weights of the classes: 12 / (3 * count).
BALANCED = np.array([2, 4 / 3, 4 / 7])


def make_source():
    """Returns a source of images whose first channel is their index."""
    labels = np.repeat(range(3), list(COUNTS.values()))
    images = np.zeros((len(labels), 4, 4, 3), "uint8")
    images[..., 0] = np.arange(len(labels))[:, None, None]
    return data.arrays(images, labels, tuple(COUNTS))


def batches(count, batch_size=6, start_step=0, **fields):
    dataset = data.train_batches(
        make_source(), batch_size=batch_size, seed=3, start_step=start_step, **fields
    )
    return take(dataset, count)


def test_balanced_sampling_shows_classes_equally_often_and_images_in_turn():
    balanced = batches(20, batch_size=3, sampling="balanced")
    images, labels, _ = (np.stack(parts) for parts in zip(*balanced))
    # Each batch of three images has one image of each class.
    np.testing.assert_array_equal(labels.sum(1), np.ones((20, 3)))
    indices = np.rint((images[..., 0, 0, 0] + 1) * 127.5).astype(int)
    counts = np.bincount(indices.ravel(), minlength=12)
    sizes = list(COUNTS.values())
    expected = np.repeat([20 / size for size in sizes], sizes)
    assert (np.abs(counts - expected) < 1).all()


def test_balanced_sampling_resumes_at_any_step():
    whole = batches(5, sampling="balanced")
    assert_same_batches(batches(2, start_step=3, sampling="balanced"), whole[3:])


def test_balanced_weights_are_mixed_like_targets():
    _, labels, weights = batches(1, batch_size=12, mixup_alpha=1.0, class_weights="balanced")[0]
    assert (labels.max(1) < 1).any()
    np.testing.assert_allclose(weights, labels @ BALANCED, rtol=1e-5)


def test_weights_come_from_a_file(tmp_path):
    path = tmp_path / "weights.csv"
    path.write_text("common,0.5\nrare,3\n\nusual,1\n")
    _, labels, weights = batches(1, batch_size=12, class_weights=str(path))[0]
    np.testing.assert_allclose(weights, labels @ np.array([3, 1, 0.5]))


@pytest.mark.parametrize(
    "text",
    [
        "common,1\n",
        "common,1\ncommon,2\nrare,1\nusual,1\n",
        "common,1\nrare,1\nusual,-1\n",
        "common,1\nrare,1\nusual",
        "common,0\nrare,0\nusual,0\n",
    ],
)
def test_rejects_bad_files_of_weights(tmp_path, text):
    path = tmp_path / "weights.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match="file of `class_weights` must have"):
        batches(1, class_weights=str(path))


@pytest.mark.parametrize(
    "fields", [{"sampling": "even"}, {"sampling": "balanced", "class_weights": "balanced"}]
)
def test_rejects_unknown_sampling_and_sampling_with_weights(fields):
    with pytest.raises(ValueError, match="`sampling` must be"):
        batches(1, **fields)


@pytest.mark.parametrize("field", ["sampling", "class_weights"])
def test_balanced_needs_labels(field):
    source = dataclasses.replace(make_source(), labels=None)
    with pytest.raises(ValueError, match="needs the labels"):
        data.train_batches(source, batch_size=2, seed=0, **{field: "balanced"})


def test_balanced_sampling_refuses_sources_in_order():
    with pytest.raises(ValueError, match="read in order"):
        data.train_batches(in_order(make_source()), batch_size=2, seed=0, sampling="balanced")
