"""Accuracy of the nearest neighbors in the space of representations."""

import numpy as np

from keras_vit.evaluation.representations import check_representation, train_and_test
from keras_vit.layers.validation import check_positive_int

METRICS = ("accuracy",)
SPLITS = ("train", "test")
check = check_representation
NEIGHBORS = 20
TEMPERATURE = 0.07
_CHUNK = 1024


def evaluate(model, inputs, engine=None):
    """The accuracy of a vote of the 20 nearest training images.

    Args:
        model: a `keras.Model` with a Vision Transformer in it, or one that ends in a dense layer.
        inputs: the `data.InputPipeline`; its classes need not be the model's. All training representations are held.
        engine: of a run; not used.

    Returns:
        `accuracy`.

    Raises:
        ValueError: as `representations`.

    Reference: the protocol of DINO (Caron et al., 2021): cosine similarity, votes weighted by its exponential.
    """
    predictions, y_test = predict(*train_and_test(model, inputs), len(inputs.train.class_names))
    return {"accuracy": float((predictions == y_test).mean())}


def predict(x, y, x_test, y_test, num_classes, neighbors=NEIGHBORS, temperature=TEMPERATURE):
    """The classes that the nearest neighbors vote for.

    Args:
        x, y: representations `(N, D)` and classes `(N,)` of training examples.
        x_test, y_test: `(M, D)` and `(M,)`, of test examples.
        num_classes: how many classes there are.
        neighbors: how many of them vote, 1 or more; all, where there are fewer. Of equally near ones, the first.
        temperature: a vote counts `exp(cosine similarity / temperature)`.

    Returns:
        `(predictions, y_test)`, integers `(M,)` both.
    """
    check_positive_int("neighbors", neighbors)
    x, x_test = _unit(x), _unit(x_test)
    neighbors, predictions = min(neighbors, len(x)), np.empty(len(x_test), "int64")
    for start in range(0, len(x_test), _CHUNK):
        similarity = x_test[start : start + _CHUNK] @ x.T
        nearest = _nearest(similarity, neighbors)
        # Relative to the largest one, which changes no vote and cannot overflow.
        weights = np.exp((np.take_along_axis(similarity, nearest, 1) - 1) / temperature).astype("float64")
        votes = np.zeros((len(similarity), num_classes))
        np.add.at(votes, (np.arange(len(votes))[:, None], y[nearest]), weights)
        predictions[start : start + _CHUNK] = votes.argmax(1)
    return predictions, y_test


def _nearest(similarity, neighbors):
    """The indices of the largest values of each row, of equal ones the first: `(M, N)` to `(M, neighbors)`."""
    nearest = np.argpartition(-similarity, neighbors - 1, axis=1)[:, :neighbors]
    least = np.take_along_axis(similarity, nearest, 1).min(1)
    # `argpartition` takes any of those that are as near as the last one.
    for row in np.flatnonzero((similarity >= least[:, None]).sum(1) > neighbors):
        candidates = np.flatnonzero(similarity[row] >= least[row])
        nearest[row] = candidates[np.argsort(-similarity[row, candidates], kind="stable")[:neighbors]]
    return nearest


def _unit(x):
    x = np.asarray(x, "float32")
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1)
