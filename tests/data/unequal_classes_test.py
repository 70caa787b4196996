"""Class weights and balanced sampling."""

import collections

import numpy as np
import pytest

from keras_vit import data

COUNTS = {"rare": 2, "usual": 3, "common": 7}
NAMES = tuple(COUNTS)


def source_of(counts=COUNTS):
    """Images whose first pixel is their index."""
    labels = np.repeat(range(len(counts)), list(counts.values()))
    images = np.zeros((len(labels), 4, 4, 3), "uint8")
    images[..., 0] = np.arange(len(labels))[:, None, None]
    return data.arrays(images, labels, tuple(counts))


def batches(count, batch_size=6, start_step=0, **fields):
    options = {"image_size": 4, "train_crop": "none", "flip": "off", "shift": 0, **fields}
    dataset = data.train_batches(
        source_of(), batch_size=batch_size, seed=3, start_step=start_step, **options
    )
    return [tuple(map(np.asarray, batch)) for batch in dataset.take(count)]


def test_balanced_sampling_shows_classes_equally_often_and_images_in_turn():
    found = batches(20, batch_size=3, sampling="balanced")
    for _, labels, _ in found:
        np.testing.assert_array_equal(labels.sum(0), [1, 1, 1])
    seen = [round((x + 1) * 127.5) for images, *_ in found for x in images[:, 0, 0, 0]]
    counts = collections.Counter(seen)
    expected = [20 / count for count in COUNTS.values() for _ in range(count)]
    assert all(abs(counts[i] - times) < 1 for i, times in enumerate(expected))


def test_balanced_sampling_resumes_at_any_step():
    whole = batches(5, sampling="balanced")
    for resumed, expected in zip(batches(2, start_step=3, sampling="balanced"), whole[3:]):
        for ours, theirs in zip(resumed, expected):
            np.testing.assert_array_equal(ours, theirs)


def test_balanced_weights_have_mean_one():
    _, labels, weights = batches(1, batch_size=12, class_weights="balanced")[0]
    np.testing.assert_allclose(weights, labels @ np.array([2, 4 / 3, 4 / 7]), rtol=1e-6)
    assert weights.mean() == pytest.approx(1)


def test_weights_are_mixed_like_targets():
    plain = batches(1, batch_size=12, mixup_alpha=1.0)[0]
    _, labels, weights = batches(1, batch_size=12, mixup_alpha=1.0, class_weights="balanced")[0]
    np.testing.assert_array_equal(labels, plain[1])
    np.testing.assert_array_equal(plain[2], np.ones(12))
    np.testing.assert_allclose(weights, labels @ np.array([2, 4 / 3, 4 / 7]), rtol=1e-5)


def test_weights_come_from_a_file(tmp_path):
    path = tmp_path / "weights.csv"
    path.write_text("common,0.5\nrare,3\n\nusual,1\n")
    _, labels, weights = batches(1, batch_size=12, class_weights=str(path))[0]
    np.testing.assert_allclose(weights, labels @ np.array([3, 1, 0.5]))


@pytest.mark.parametrize(
    "text",
    [
        "common,1\n",
        "common,1\ncommon,2\n",
        "other,1\n",
        "common,-1\n",
        "common,x\n",
        "common",
        "common,0\nrare,0\nusual,0\n",
    ],
)
def test_rejects_bad_files_of_weights(tmp_path, text):
    path = tmp_path / "weights.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match="file of `class_weights` must have"):
        batches(1, class_weights=str(path))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sampling": "even"}, "`sampling` must be"),
        ({"sampling": "balanced", "class_weights": "balanced"}, "correct twice"),
        ({"class_weights": "weights.csv"}, "weights.csv"),
    ],
)
def test_rejects_bad_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        batches(1, **fields)


def test_balanced_needs_labels():
    source = source_of()
    object.__setattr__(source, "labels", None)
    for fields in ({"sampling": "balanced"}, {"class_weights": "balanced"}):
        with pytest.raises(ValueError, match="needs the labels"):
            data.train_batches(source, batch_size=2, seed=0, image_size=4, **fields)
