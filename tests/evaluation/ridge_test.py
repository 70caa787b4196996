"""Tests of few-shot ridge regression and of the examples that it draws."""

import numpy as np
import pytest

from keras_vit.evaluation.frozen import draw_shots, ridge_scores


# The number of examples is smaller than the number of features, or not.
@pytest.mark.parametrize("case", ["n_lt_d", "n_ge_d"])
def test_accuracies_match_reference(case, golden):
    reference = golden("fewshot")
    names = ("x", "y", "x_test", "y_test", "num_classes", "l2", "acc")
    x, y, x_test, y_test, num_classes, l2, expected = (reference[f"{case}/{n}"] for n in names)
    scores = [ridge_scores(x, y, x_test, num_classes, value) for value in l2]
    ours = [(score.argmax(1) == y_test).mean() for score in scores]
    np.testing.assert_allclose(ours, expected, atol=1e-7)


def test_scores_match_known_values():
    """The values come from a specification of big_vision's few-shot evaluation."""
    random = np.random.RandomState(7)
    centers = random.standard_normal((5, 16))
    y = np.arange(50) % 5
    x = (0.8 * centers[y] + random.standard_normal((50, 16))).astype("float32")
    x_test = (0.8 * centers[:1] + random.standard_normal((1, 16))).astype("float32")
    expected = [[0.28627, -1.10814, -0.92300, -0.21955, -1.03557]]
    np.testing.assert_allclose(ridge_scores(x, y, x_test, 5, 1.0), expected, atol=1e-5)


def test_shots_match_the_reference_and_are_nested():
    labels = np.random.default_rng(5).integers(0, 4, 80)
    for seed in range(3):
        random = np.random.default_rng(seed)
        expected = [random.permutation(np.flatnonzero(labels == label))[:5] for label in range(4)]
        draws = {shots: draw_shots(labels, shots, 4, seed) for shots in (1, 5, 100)}
        np.testing.assert_array_equal(draws[5], np.concatenate(expected))
        assert set(draws[1]) < set(draws[5]) < set(draws[100]) == set(range(80))
