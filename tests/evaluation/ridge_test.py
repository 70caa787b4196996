"""Tests of few-shot ridge regression and of the examples that it draws."""

import numpy as np
import pytest

from keras_vit.evaluation.frozen import draw_shots, ridge_scores


def accuracies(x, y, x_test, y_test, num_classes, weights):
    return [
        (ridge_scores(x, y, x_test, num_classes, l2).argmax(1) == y_test).mean() for l2 in weights
    ]


@pytest.mark.parametrize("case", ["n_lt_d", "n_ge_d"])
def test_accuracies_match_reference(case, golden):
    numbers = golden("fewshot")
    arrays = (numbers[f"{case}/{name}"] for name in ("x", "y", "x_test", "y_test"))
    ours = accuracies(*arrays, int(numbers[f"{case}/num_classes"]), numbers[f"{case}/l2"])
    np.testing.assert_allclose(ours, numbers[f"{case}/acc"], atol=1e-7)


@pytest.mark.parametrize(
    ("count", "expected"), [(10, [0.665, 0.760, 0.850]), (50, [0.920, 0.925, 0.955])]
)
def test_accuracies_and_scores_match_known_values(count, expected):
    # The number of features, 16, is between the two numbers of examples, 10 and 50.
    random = np.random.RandomState(7)
    centers = random.standard_normal((5, 16))

    def draw(n):
        y = np.arange(n) % 5
        return (0.8 * centers[y] + random.standard_normal((n, 16))).astype("float32"), y

    x, y = draw(count)
    x_test, y_test = draw(200)
    np.testing.assert_allclose(
        accuracies(x, y, x_test, y_test, 5, [2**-10, 1, 2**10]), expected, atol=1e-12
    )
    if count == 50:
        first = ridge_scores(x, y, x_test, 5, 1.0)[0]
        np.testing.assert_allclose(
            first, [0.28627, -1.10814, -0.92300, -0.21955, -1.03557], atol=1e-5
        )


def test_shots_match_the_reference_and_are_nested():
    labels = np.random.default_rng(5).integers(0, 4, 80)
    for seed in range(3):
        random = np.random.default_rng(seed)
        expected = [random.permutation(np.flatnonzero(labels == c))[:5] for c in range(4)]
        draws = {shots: draw_shots(labels, shots, 4, seed) for shots in (1, 5, 100)}
        np.testing.assert_array_equal(draws[5], np.concatenate(expected))
        assert set(draws[1]) < set(draws[5]) < set(draws[100]) == set(range(80))


def test_examples_are_drawn_uniformly():
    labels = np.repeat(np.arange(3), 10)
    counts = np.zeros(30)
    for seed in range(2000):
        counts[draw_shots(labels, 2, 3, seed)] += 1
    # Each example is drawn 400 times on average, with a standard deviation of 18.
    assert abs(counts - 400).max() < 90
    # Draws in different classes are uncorrelated.
    picks = np.array([draw_shots(labels, 1, 3, seed) - [0, 10, 20] for seed in range(500)])
    assert abs(np.corrcoef(picks.T)[np.triu_indices(3, 1)]).max() < 0.15
