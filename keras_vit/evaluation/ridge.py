"""Regularized least squares in closed form: the linear classifier of the few-shot evaluation, in numpy."""

import itertools

import numpy as np

# Of the older form, in which one weight is chosen for each number of shots; the other one is big_vision's.
L2_GRID = tuple(2.0**power for power in range(-10, 20))
L2 = 2.0**10

_BIAS = 100.0  # the constant feature: large, so that its weight is hardly regularized
_CHUNK = 4096  # test examples that are scored at a time


def draw_shots(labels, shots, num_classes, seed):
    """Draws some examples of each class: the first ones of a random order, so fewer shots are part of more.

    Args:
        labels: integers `(N,)`; negative ones are not drawn.
        shots: how many examples of each class, 1 or more; all of a class that has fewer.
        num_classes: how many classes there are.
        seed: a non-negative integer.

    Returns:
        int64 indices, class by class, in the order in which they were drawn.

    Reference: big_vision's `fewshot_lsr`, whose draws of the same seed these are (`numpy.random.default_rng`, which
    keys a generator by a `SeedSequence`).
    """
    random, labels = np.random.default_rng(seed), np.asarray(labels)
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(num_classes + 1))
    permuted = [random.permutation(order[start:end]) for start, end in itertools.pairwise(starts)]
    return np.concatenate([indices[:shots] for indices in permuted]).astype("int64")


def accuracies(x, y, x_test, y_test, num_classes, l2):
    """The test accuracy of the linear classifier for each ridge weight.

    Features are normalized to mean 0 and deviation 1 of the training examples, and get a constant feature 100. The
    classifier `W = (X'X + l2 I)^-1 X'Y` maps them to targets of -1 and 1; the class with the largest value wins.

    Args:
        x: `(N, D)`, features of training examples.
        y: integers `(N,)` in [0, num_classes), their classes.
        x_test, y_test: `(M, D)` and `(M,)`, the same of test examples.
        num_classes: how many classes there are.
        l2: ridge weights, above 0.

    Returns:
        float64 `(len(l2),)`.

    Raises:
        ValueError: there are no examples, the shapes do not fit one another, a feature is not finite, or a class or a
            ridge weight is out of range.

    Reference: big_vision's `fewshot_lsr`, in float64: products in float32 decide only where their rounding cannot.
    """
    x, x_test = np.asarray(x, "float64"), np.asarray(x_test)
    y, y_test, l2 = np.asarray(y), np.asarray(y_test), np.asarray(l2, "float64")
    _validate(x, y, x_test, y_test, num_classes, l2)
    mean, deviation = x.mean(0), x.std(0) + 1e-5
    x = _normalized(x, mean, deviation)
    values, vectors, projected = _eigenbasis(x, y, num_classes)
    del x
    classifiers = [(projected / (values + weight)[:, None]).astype("float32") for weight in l2]
    right = np.zeros(len(l2))
    for start in range(0, len(x_test), _CHUNK):
        rows = _normalized(x_test[start : start + _CHUNK], mean, deviation) @ vectors  # (chunk, rank)
        rows_32, norms = rows.astype("float32"), np.linalg.norm(rows, axis=1)
        labels = y_test[start : start + _CHUNK]
        for index, (weight, classifier) in enumerate(zip(l2, classifiers)):
            margins = _margins(rows_32 @ classifier, labels)
            # Twice the bound on the rounding of a product in float32, and of its factors.
            error = 4 * len(values) * np.finfo("float32").eps * norms * np.linalg.norm(classifier, axis=0).max()
            right[index] += np.count_nonzero(margins > error)
            unsure = np.flatnonzero(np.abs(margins) <= error)
            if len(unsure):
                exact = rows[unsure] @ (projected / (values + weight)[:, None])
                right[index] += np.count_nonzero(exact.argmax(1) == labels[unsure])
    return right / len(x_test)


def _margins(values, labels):
    """By how much the value of the label exceeds the largest other one: `(N, classes)` to `(N,)`; changes `values`."""
    rows = np.arange(len(labels))
    of_label = values[rows, labels]
    values[rows, labels] = -np.inf
    return of_label - values.max(1)


def scores(x, y, x_test, num_classes, l2):
    """What the classifier of one ridge weight gives for test examples, float64 `(M, num_classes)`; see `accuracies`."""
    x = np.asarray(x, "float64")
    mean, deviation = x.mean(0), x.std(0) + 1e-5
    values, vectors, projected = _eigenbasis(_normalized(x, mean, deviation), np.asarray(y), num_classes)
    return _normalized(np.asarray(x_test), mean, deviation) @ vectors @ (projected / (values + l2)[:, None])


def choose_by_rank(accuracies_of_datasets):
    """The index of the ridge weight with the highest mean rank over datasets, the same for all of them.

    Args:
        accuracies_of_datasets: `(datasets, len(l2))`, of one number of shots.

    Returns:
        An int, the first of several that are equally good.

    Reference: Scenic's and V-MoE's few-shot evaluators: argsort of argsort, mean over datasets, argmax.
    """
    ranks = np.argsort(np.argsort(np.asarray(accuracies_of_datasets), axis=1, kind="stable"), axis=1, kind="stable")
    return int(ranks.mean(0).argmax())


def _eigenbasis(x, y, num_classes):
    """Eigenvalues of X'X, their vectors `(D, rank)`, and X'Y in that basis `(rank, classes)`."""
    targets = np.full((len(x), num_classes), -1.0)
    targets[np.arange(len(x)), y] = 1.0
    if len(x) < x.shape[1]:  # the same from the smaller matrix, XX'
        values, dual = np.linalg.eigh(x @ x.T)
        kept = values > values.max() * len(x) * np.finfo("float64").eps
        values, dual = values[kept], dual[:, kept]
        vectors = x.T @ (dual / np.sqrt(values))
        return values, vectors, np.sqrt(values)[:, None] * (dual.T @ targets)
    values, vectors = np.linalg.eigh(x.T @ x)
    return np.maximum(values, 0), vectors, vectors.T @ (x.T @ targets)


def _normalized(x, mean, deviation):
    result = np.empty((len(x), x.shape[1] + 1))
    np.subtract(x, mean, out=result[:, :-1])
    result[:, :-1] /= deviation
    result[:, -1] = _BIAS
    return result


def _validate(x, y, x_test, y_test, num_classes, l2):
    if x.ndim != 2 or x_test.shape[1:] != x.shape[1:] or not len(x) or not len(x_test):
        raise ValueError(
            f"Features must be (N, D) and (M, D), N and M 1 or more. Received: {x.shape} and {x_test.shape}"
        )
    for labels, features in ((y, x), (y_test, x_test)):
        if labels.shape != (len(features),) or labels.dtype.kind not in "iu":
            raise ValueError(
                f"There must be an integer label for each of {len(features)} examples. Received: "
                f"dtype={labels.dtype}, shape={labels.shape}"
            )
        if labels.min() < 0 or labels.max() >= num_classes:
            raise ValueError(
                f"Labels of {num_classes} classes are 0 to {num_classes - 1}. "
                f"Received: labels from {labels.min()} to {labels.max()}"
            )
        if not np.isfinite(features).all():
            raise ValueError("Features must be finite. Received: some that are not")
    if l2.ndim != 1 or not len(l2) or not (np.isfinite(l2) & (l2 > 0)).all():
        raise ValueError(f"Ridge weights must be numbers above 0. Received: l2={l2.tolist()}")
