"""Tests of few-shot ridge regression and of the examples that it draws."""

import numpy as np
import pytest

from keras_vit.evaluation.frozen import draw_shots, ridge_scores


def accuracies(x, y, x_test, y_test, num_classes, l2_weights):
    """Returns the accuracy for each weight of the regularization."""
    scores = [ridge_scores(x, y, x_test, num_classes, l2) for l2 in l2_weights]
    return [(score.argmax(1) == y_test).mean() for score in scores]


# The number of examples is smaller than the number of features, or not.
@pytest.mark.parametrize("case", ["n_lt_d", "n_ge_d"])
def test_accuracies_match_reference(case, golden):
    reference = golden("fewshot")
    arrays = (reference[f"{case}/{name}"] for name in ("x", "y", "x_test", "y_test", "num_classes"))
    ours = accuracies(*arrays, reference[f"{case}/l2"])
    np.testing.assert_allclose(ours, reference[f"{case}/acc"], atol=1e-7)


def _data(count):
    """Returns training and test data of five classes: `(x, y, x_test, y_test)`, with 16
    features."""
    random = np.random.RandomState(7)
    centers = random.standard_normal((5, 16))

    def draw(n):
        y = np.arange(n) % 5
        return (0.8 * centers[y] + random.standard_normal((n, 16))).astype("float32"), y

    return *draw(count), *draw(200)


# The values expected here and below come from a specification of big_vision's few-shot evaluation.
@pytest.mark.parametrize(
    ("count", "expected"), [(10, [0.665, 0.760, 0.850]), (50, [0.920, 0.925, 0.955])]
)
def test_accuracies_match_known_values(count, expected):
    ours = accuracies(*_data(count), 5, [2**-10, 1, 2**10])
    np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_scores_match_known_values():
    x, y, x_test, _ = _data(50)
    scores = ridge_scores(x, y, x_test, 5, 1.0)[0]
    expected = [0.28627, -1.10814, -0.92300, -0.21955, -1.03557]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_shots_match_the_reference_and_are_nested():
    labels = np.random.default_rng(5).integers(0, 4, 80)
    for seed in range(3):
        random = np.random.default_rng(seed)
        expected = [random.permutation(np.flatnonzero(labels == label))[:5] for label in range(4)]
        draws = {shots: draw_shots(labels, shots, 4, seed) for shots in (1, 5, 100)}
        np.testing.assert_array_equal(draws[5], np.concatenate(expected))
        assert set(draws[1]) < set(draws[5]) < set(draws[100]) == set(range(80))
