import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

from ..shared import SIZES, THREE_LAYERS, random_images


@pytest.mark.parametrize(
    "side, patch, out, kept",
    [(14, 16, 116.49, 115.90), (7, 32, 115.50, 113.19), (16, 14, 116.57, 116.11)],
)
def test_uniform_attention_has_the_mean_grid_distance(side, patch, out, kept):
    tokens = side * side + 1
    scores = np.full((2, tokens, tokens), 1 / tokens, "float32")
    arguments = ((side, side), (patch, patch), 1)
    np.testing.assert_allclose(inspection.mean_distance(scores, *arguments), out, atol=0.005)
    np.testing.assert_allclose(
        inspection.mean_distance(scores, *arguments, class_token="in"), kept, atol=0.005
    )


def test_distances_match_known_attention_patterns():
    identity = np.eye(6, dtype="float32")[None]
    assert inspection.mean_distance(identity, (3, 2), (8, 5)).tolist() == [0]
    right, below = np.zeros((2, 6, 6), "float32")
    for row in range(3):
        right[2 * row, 2 * row + 1] = right[2 * row + 1, 2 * row] = 1
    below[range(6), [2, 3, 4, 5, 2, 3]] = 1
    np.testing.assert_allclose(
        inspection.mean_distance(np.stack([right, below]), (3, 2), (8, 5)), [5, 8], atol=1e-5
    )


def test_distances_do_not_depend_on_the_batch_size():
    model = keras_vit.VisionTransformer(**{**THREE_LAYERS, "num_layers": 2})
    images = random_images((3, 24, 16, 3))
    for class_token in ("in", "out"):
        ours = inspection.attention_distance(model, images, class_token, batch_size=2)
        scores = inspection.attention_scores(model, images)
        expected = inspection.mean_distance(scores, (3, 2), (8, 8), 1, class_token).mean(1)
        assert ours.shape == (2, 3)
        np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_rejects_bad_requests():
    scores = np.full((1, 6, 6), 1 / 6)
    with pytest.raises(ValueError, match="Received: class_token='drop'"):
        inspection.mean_distance(scores, (3, 2), (8, 8), class_token="drop")
    with pytest.raises(ValueError, match=r"heads, 7, 7\)"):
        inspection.mean_distance(scores, (3, 2), (8, 8), 1)


def test_distance_accepts_float64_and_rejects_bad_batch_size():
    arguments = ((2, 2), (4, 4), 1)
    single = inspection.mean_distance(np.full((1, 5, 5), 0.2, "float32"), *arguments)
    np.testing.assert_array_equal(
        inspection.mean_distance(np.full((1, 5, 5), 0.2), *arguments), single
    )
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3))
    for size in (-1, 0):
        with pytest.raises(ValueError, match=f"Received: batch_size={size}"):
            inspection.attention_distance(model, np.zeros((1, 8, 8, 3), "float32"), batch_size=size)
