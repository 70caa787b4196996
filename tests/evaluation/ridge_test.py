"""The few-shot classifier agrees with the reference for every ridge weight."""

import numpy as np
import pytest

from keras_vit.evaluation import ridge


@pytest.mark.parametrize("case", ["n_lt_d", "n_ge_d"])
def test_accuracies_are_those_of_the_reference_for_every_ridge_weight(case, golden):
    numbers = golden("fewshot")
    arrays = (numbers[f"{case}/{name}"] for name in ("x", "y", "x_test", "y_test"))
    ours = ridge.accuracies(*arrays, int(numbers[f"{case}/num_classes"]), numbers[f"{case}/l2"])
    np.testing.assert_allclose(ours, numbers[f"{case}/acc"], atol=1e-7)
    np.testing.assert_array_equal(ridge.L2_GRID, numbers[f"{case}/l2"])


@pytest.mark.parametrize(("count", "expected"), [(10, [0.665, 0.760, 0.850]), (50, [0.920, 0.925, 0.955])])
def test_accuracies_and_scores_are_those_of_the_specification(count, expected):
    # reference/spec.md, section 12: fewer and more examples than features.
    random = np.random.RandomState(7)
    centers = random.standard_normal((5, 16))

    def draw(n):
        y = np.arange(n) % 5
        return (0.8 * centers[y] + random.standard_normal((n, 16))).astype("float32"), y

    x, y = draw(count)
    x_test, y_test = draw(200)
    np.testing.assert_allclose(ridge.accuracies(x, y, x_test, y_test, 5, [2**-10, 1, 2**10]), expected, atol=1e-12)
    if count == 50:
        first = ridge.scores(x, y, x_test, 5, 1.0)[0]
        np.testing.assert_allclose(first, [0.28627, -1.10814, -0.92300, -0.21955, -1.03557], atol=1e-5)


def test_near_ties_are_decided_as_in_float64(monkeypatch):
    random = np.random.default_rng(0)
    x, y = random.standard_normal((60, 8)), np.arange(60) % 3
    x_test, y_test = random.standard_normal((500, 8)), random.integers(0, 3, 500)
    weights = [2.0**-10, 2.0**15]
    exact = [(ridge.scores(x, y, x_test, 3, weight).argmax(1) == y_test).mean() for weight in weights]
    np.testing.assert_array_equal(ridge.accuracies(x, y, x_test, y_test, 3, weights), exact)
    # A float32 that rounds so badly that it could decide nothing leaves it all to float64.
    monkeypatch.setattr(ridge, "_margins", lambda values, labels: np.zeros(len(labels)))
    np.testing.assert_array_equal(ridge.accuracies(x, y, x_test, y_test, 3, weights), exact)


def test_shots_are_the_draws_of_the_reference_and_grow():
    labels = np.random.default_rng(5).integers(0, 4, 80)
    for seed in range(3):
        random = np.random.default_rng(seed)
        expected = [random.permutation(np.flatnonzero(labels == c))[:5] for c in range(4)]
        draws = {shots: ridge.draw_shots(labels, shots, 4, seed) for shots in (1, 5, 100)}
        np.testing.assert_array_equal(draws[5], np.concatenate(expected))
        assert set(draws[1]) < set(draws[5]) < set(draws[100]) == set(range(80))


def test_every_example_is_drawn_equally_often():
    labels = np.repeat(np.arange(3), 10)
    counts = np.zeros(30)
    for seed in range(2000):
        counts[ridge.draw_shots(labels, 2, 3, seed)] += 1
    # 400 on average, with a deviation of 18.
    assert abs(counts - 400).max() < 90
    # The picks that are drawn in one class say nothing of those in another.
    picks = np.array([ridge.draw_shots(labels, 1, 3, seed) - [0, 10, 20] for seed in range(500)])
    assert abs(np.corrcoef(picks.T)[np.triu_indices(3, 1)]).max() < 0.15


def test_the_ridge_weight_of_the_best_mean_rank_is_chosen():
    # Ranks 0 1 2 and 2 1 0 and 1 2 0: means 1, 4/3, 2/3. Not the best mean accuracy, which is that of the first.
    assert ridge.choose_by_rank([[0.1, 0.2, 0.3], [0.9, 0.2, 0.1], [0.5, 0.51, 0.1]]) == 1
    assert ridge.choose_by_rank([[0.5, 0.5]]) == 1  # as in the reference: the later of equal ones ranks higher


def test_bad_input_is_refused():
    x, y = np.zeros((4, 3)), np.array([0, 1, 2, 0])
    for match, arguments in (
        ("N and M 1 or more", (x[:0], y[:0], x, y, 3, [1])),
        (r"Received: \(4, 3\) and \(4, 2\)", (x, y, x[:, :2], y, 3, [1])),
        ("0 to 1. Received: labels from 0 to 2", (x, y, x, y, 2, [1])),
        ("an integer label for each of 4", (x, y[:3], x, y, 3, [1])),
        ("must be finite", (x, y, x * np.nan, y, 3, [1])),
        (r"above 0. Received: l2=\[0.0\]", (x, y, x, y, 3, [0])),
    ):
        with pytest.raises(ValueError, match=match):
            ridge.accuracies(*arguments)
