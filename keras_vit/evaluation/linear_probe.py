"""Accuracy of logistic regression on frozen representations."""

import warnings

import numpy as np

from keras_vit.evaluation.representations import check_representation, train_and_test

METRICS = ("accuracy", "inverse_regularization")
SPLITS = ("train", "test")
check = check_representation
GRID = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of scikit-learn's C
_STEPS = 500


def evaluate(model, inputs, engine=None):
    """The test accuracy of a linear classifier on all training images.

    The regularization is chosen on a tenth of the training examples, which is drawn evenly from all classes, and the
    classifier is then fitted to all of them.

    Args:
        model: a `keras.Model` with a Vision Transformer in it, or one that ends in a dense layer.
        inputs: the `data.InputPipeline`; its classes need not be the model's.
        engine: of a run; not used.

    Returns:
        `accuracy`, and `inverse_regularization`, scikit-learn's C that was chosen.

    Raises:
        ValueError: as `representations`; or there are fewer than two classes, or too few examples of one.
    """
    return fit_and_score(*train_and_test(model, inputs))


def fit_and_score(x, y, x_test, y_test):
    """The metrics of `evaluate` from representations `(N, D)`, `(M, D)` and classes `(N,)`, `(M,)`."""
    # scikit-learn takes about a second to import.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    counts = np.bincount(y)
    if len(counts[counts > 0]) < 2 or counts[counts > 0].min() < 2:
        raise ValueError(
            "A linear probe needs two classes or more, and two training examples or more of each. "
            f"Received: {len(counts[counts > 0])} classes, the smallest of {counts[counts > 0].min()} examples"
        )
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    x, x_test = ((part - mean) / deviation for part in (x, x_test))
    held_out = max(len(x) // 10, np.count_nonzero(counts))
    x_fit, x_val, y_fit, y_val = train_test_split(x, y, test_size=held_out, random_state=0, stratify=y)

    def fitted(features, labels, inverse):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a bound on the steps regularizes too
            return LogisticRegression(C=inverse, max_iter=_STEPS).fit(features, labels)

    scores = [fitted(x_fit, y_fit, inverse).score(x_val, y_val) for inverse in GRID]
    best = GRID[int(np.argmax(scores))]
    return {"accuracy": float(fitted(x, y, best).score(x_test, y_test)), "inverse_regularization": best}
