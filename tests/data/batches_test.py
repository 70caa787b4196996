import numpy as np
import pytest

from keras_vit import data

N = 7


@pytest.fixture
def source():
    """Seven images, each of which is its own label."""
    images = np.tile(np.arange(N, dtype=np.uint8)[:, None, None, None], (1, 4, 6, 3))
    return data.arrays(images, np.arange(N), [f"class {i}" for i in range(N)], max_value=10)


def _batches(dataset, number):
    return [tuple(part.numpy() for part in batch) for batch in dataset.take(number)]


def _labels(batches):
    return np.concatenate([batch[1].argmax(-1) for batch in batches])


def test_an_epoch_sees_every_example_once_in_another_order_each_time(source):
    batches = _batches(data.train_batches(source, batch_size=2, seed=3), 14)  # four epochs
    epochs = _labels(batches).reshape(4, N)
    for epoch in epochs:
        assert sorted(epoch) == list(range(N))
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_pipeline_that_starts_later_gives_what_the_whole_one_gives_from_there(source):
    arguments = {"batch_size": 3, "seed": 5, "shift": 1}
    whole = _batches(data.train_batches(source, **arguments), 9)
    for start in (1, 4, 7):
        for one, other in zip(_batches(data.train_batches(source, **arguments, start_step=start), 2), whole[start:]):
            for a, b in zip(one, other):
                np.testing.assert_array_equal(a, b)


def test_the_seed_decides_the_order(source):
    def order(seed):
        return _labels(_batches(data.train_batches(source, batch_size=N, seed=seed), 3)).tolist()

    assert order(0) == order(0) != order(1)


def test_images_keep_their_labels_and_their_range(source):
    for images, labels, weights in _batches(data.train_batches(source, batch_size=4, seed=0), 6):
        assert images.dtype == labels.dtype == weights.dtype == np.float32
        assert (weights == 1).all()
        np.testing.assert_allclose(
            images, np.tile(labels.argmax(-1)[:, None, None, None] / 5 - 1, (1, 4, 6, 3)), atol=1e-6
        )
        np.testing.assert_array_equal(labels.sum(-1), 1)


def test_shapes_are_static(source):
    train = data.train_batches(source, batch_size=2, seed=0, shift=1)
    assert [tuple(spec.shape) for spec in train.element_spec] == [(2, 4, 6, 3), (2, N), (2,)]
    evaluation = data.eval_batches(source, batch_size=2)
    assert [tuple(spec.shape) for spec in evaluation.element_spec] == [(2, 4, 6, 3), (2, N), (2,)]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 10])
def test_evaluation_holds_every_example_once_and_fills_up_with_weight_zero(batch_size, source):
    batches = _batches(data.eval_batches(source, batch_size=batch_size), -1)
    weights = np.concatenate([batch[2] for batch in batches])
    np.testing.assert_array_equal(_labels(batches)[weights == 1], np.arange(N))
    assert len(weights) == -(-N // batch_size) * batch_size


def test_a_shift_moves_the_image_by_up_to_its_pixels_and_fills_with_black():
    image = np.zeros((1, 5, 5, 3), np.uint8)
    image[0, 2, 2] = 10
    source = data.arrays(image, [0], ["dot"], max_value=10)
    images = np.concatenate([b[0] for b in _batches(data.train_batches(source, batch_size=20, seed=0, shift=1), 10)])
    bright = {tuple(np.argwhere(one[..., 0] == 1)[0]) for one in images}
    assert bright == {(row, column) for row in (1, 2, 3) for column in (1, 2, 3)}
    assert set(np.unique(images)) == {-1, 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": np.zeros((2, 4, 4, 3))}, "`images` must be uint8.*Received: dtype=float64"),
        ({"images": np.zeros((2, 4, 4), np.uint8)}, r"`images` must be uint8 .*shape=\(2, 4, 4\)"),
        ({"images": np.zeros((0, 4, 4, 3), np.uint8), "labels": []}, "N of 1 or more"),
        ({"labels": [0]}, r"`labels` must be 2 integers, one for each image. Received: .*shape=\(1,\)"),
        ({"labels": [0.0, 1.0]}, "Received: dtype=float64"),
        ({"labels": [0, 2]}, "Labels of 2 classes are 0 to 1. Received: labels from 0 to 2"),
        ({"labels": [-1, 0]}, "Received: labels from -1 to 0"),
        ({"max_value": 3, "images": np.full((2, 4, 4, 3), 9, np.uint8)}, "`max_value`, 3. Received: a pixel of 9"),
    ],
)
def test_bad_arrays_are_refused(arguments, message):
    good = {"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": [0, 1], "class_names": ["a", "b"]}
    with pytest.raises(ValueError, match=message):
        data.arrays(**{**good, **arguments})
