"""Tests of attention distances, with and without attention to the class token."""

import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

from ..shared import THREE_LAYERS, random_images


@pytest.mark.parametrize(
    ("side", "patch", "without_token", "with_token"),
    # The mean distance of two patches in pixels. The class token adds a distance of zero.
    [(14, 16, 116.49, 115.90), (7, 32, 115.50, 113.19)],
)
def test_uniform_attention_has_the_mean_grid_distance(side, patch, without_token, with_token):
    tokens = side * side + 1
    scores = np.full((2, tokens, tokens), 1 / tokens, "float32")
    arguments = ((side, side), (patch, patch), 1)
    distance = inspection.mean_distance(scores, *arguments)
    np.testing.assert_allclose(distance, without_token, atol=0.005)
    distance = inspection.mean_distance(scores, *arguments, class_token="in")
    np.testing.assert_allclose(distance, with_token, atol=0.005)


def test_distances_match_known_attention_patterns():
    # Each patch of a 3x2 grid attends to itself, to its neighbor in the row, or to a neighbor in
    # the column. Patches have 8x5 pixels.
    itself = np.eye(6)
    in_row = np.eye(6)[[1, 0, 3, 2, 5, 4]]
    in_column = np.eye(6)[[2, 3, 4, 5, 2, 3]]
    scores = np.stack([itself, in_row, in_column]).astype("float32")
    distances = inspection.mean_distance(scores, (3, 2), (8, 5))
    np.testing.assert_allclose(distances, [0, 5, 8], atol=1e-5)


def test_distances_do_not_depend_on_the_batch_size():
    model = keras_vit.VisionTransformer(**{**THREE_LAYERS, "num_layers": 2})
    images = random_images((3, 24, 16, 3))
    distances = inspection.attention_distance(model, images, "in", batch_size=2)
    scores = inspection.attention_scores(model, images)
    expected = inspection.mean_distance(scores, (3, 2), (8, 8), 1, "in").mean(1)
    np.testing.assert_allclose(distances, expected, atol=1e-4)


def test_mean_distance_rejects_bad_arguments():
    scores = np.full((1, 6, 6), 1 / 6)
    with pytest.raises(ValueError, match="Received: class_token='drop'"):
        inspection.mean_distance(scores, (3, 2), (8, 8), class_token="drop")
    with pytest.raises(ValueError, match=r"heads, 7, 7\)"):
        inspection.mean_distance(scores, (3, 2), (8, 8), 1)


def test_attention_distance_rejects_bad_batch_size():
    model = keras_vit.VisionTransformer(**THREE_LAYERS)
    images = random_images((1, 24, 16, 3))
    with pytest.raises(ValueError, match="Received: batch_size=0"):
        inspection.attention_distance(model, images, batch_size=0)
