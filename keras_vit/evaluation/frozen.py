"""Evaluates frozen features with few-shot ridge regression, logistic regression and nearest
neighbors."""

import itertools
import logging
import warnings

import keras
import numpy as np
from keras import ops

from keras_vit.evaluation.checks import check_one_label, refuse_several_labels, with_class
from keras_vit.evaluation.collecting import collect, outputs_of, reused
from keras_vit.layers.patch_masking import PatchMasking
from keras_vit.models.any_model import output_shape_of, weights_digest
from keras_vit.models.features import FeatureModel
from keras_vit.models.image_model import ImageModel

log = logging.getLogger("keras_vit")

SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
L2 = 2.0**10  # big_vision's ridge weight
# The constant feature of ridge regression. It is large, so that its weight is barely regularized.
_BIAS = 100.0
_INVERSE_REGULARIZATIONS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # scikit-learn's C
_ROWS = 1024  # rows of the similarity matrix in memory at a time


def representation_model(model):
    """Builds a model that outputs the head's input `(B, F)` or, if `model` masks patches, the mean
    patch token.

    A backbone without a head is returned unchanged.
    """
    if any(isinstance(layer, PatchMasking) for layer in model.layers):
        images = keras.Input(model.input_shape[1:])
        return keras.Model(images, ops.mean(FeatureModel(model, tokens="patch")(images), axis=1))
    inner = model
    while not isinstance(inner, ImageModel) and getattr(inner, "layers", None):
        inner = inner.layers[-1]
    has_no_head = isinstance(inner, ImageModel) and not inner.arguments["include_top"]
    if has_no_head and len(output_shape_of(model)) == 2:
        return model
    last = next(reversed(model.layers), None)
    if isinstance(last, keras.layers.Dense) and len(last.input.shape) == 2:
        return keras.Model(model.inputs[0], last.input)
    return FeatureModel(model, tokens="pooled")


def check_representation(model, inputs):
    """Raises a `ValueError` if test examples have several labels or the model has no features."""
    check_one_label(inputs)
    representation_model(model)


def check_linear_probe(model, inputs):
    """Raises a `ValueError` unless a linear probe can be fitted to the model's features."""
    check_representation(model, inputs)
    if inputs.train.labels is not None:
        _check_counts(inputs.train.labels)


def _check_counts(labels):
    """Raises a `ValueError` unless there are two classes, and at least two examples of each class
    that occurs."""
    counts = np.unique(labels, return_counts=True)[1]
    fewest = counts.min(initial=len(labels))
    if len(counts) < 2 or fewest < 2:
        raise ValueError(
            "A linear probe requires at least two classes and at least two training examples of "
            f"each. Received: {len(counts)} classes, the smallest with {fewest} examples"
        )


def representations(model, inputs, split="test", indices=None):
    """Returns features `(N, F)` and labels `(N,)` of examples with a class, and the mask that
    selects them."""
    arrays = _features(model, inputs, split, indices)
    counted = arrays["counted"]
    return arrays["outputs"][counted], arrays["labels"][counted], counted


def _features(model, inputs, split, indices):
    """Collects features, classes and whether an example has one, as a dict; inside
    `reuse_compiled`, keeps those of a whole split until the model or its weights change."""
    kept = reused(dict)  # inside `reuse_compiled`, all calls get the same dict
    state = model, weights_digest(model)
    if kept.get("state") != state:
        kept.clear()
        kept["state"] = state
    key = id(inputs), split
    if key in kept:
        _, arrays = kept[key]
        return {name: array[... if indices is None else indices] for name, array in arrays.items()}
    arrays = collect(reused(representation_model, model), outputs_of, inputs, split, indices)
    arrays["counted"] = with_class(arrays, split)
    refuse_several_labels(arrays["labels"][arrays["counted"]], split)
    arrays["labels"] = arrays["labels"].argmax(-1)
    if indices is None:
        kept[key] = inputs, arrays  # holds `inputs`, so that its id stays unique
    return arrays


def _train_and_test(model, inputs):
    """Returns `(x, y, x_test, y_test)`: features `(N, F)` and classes `(N,)` of both splits."""
    return *representations(model, inputs, "train")[:2], *representations(model, inputs)[:2]


def fewshot(model, inputs, engine=None):
    """Computes few-shot accuracy by ridge regression on 1 to 25 images per class, as in
    big_vision's `fewshot_lsr`."""
    train = inputs.train
    num_classes = len(train.class_names)
    # If possible, compute training features only for the drawn examples.
    labels = train.labels
    indices = None
    if labels is not None and train.read is not None and not train.multi_label:
        draws = [draw_shots(labels, max(SHOTS), num_classes, seed) for seed in SEEDS]
        indices = np.unique(np.concatenate(draws))
    x, y, counted = representations(model, inputs, "train", indices)
    x_test, y_test, _ = representations(model, inputs)
    if indices is None:  # draw from the readable examples
        labels = y
        index_of_row = np.arange(len(y))
    else:
        index_of_row = indices[counted]
    # Average the accuracy over seeds for each number of shots.
    counts = np.bincount(labels, minlength=num_classes)
    metrics = {}
    for shots in SHOTS:
        if short := np.count_nonzero(counts < shots):
            log.warning(
                "%d of %d classes have fewer than %d training images", short, num_classes, shots
            )
        accuracies = []
        for seed in SEEDS:
            rows = np.isin(index_of_row, draw_shots(labels, shots, num_classes, seed))
            predicted = ridge_scores(x[rows], y[rows], x_test, num_classes).argmax(1)
            accuracies.append(np.mean(predicted == y_test))
        metrics[f"{shots}shot"] = float(np.mean(accuracies))
    return metrics


def draw_shots(labels, shots, num_classes, seed):
    """Draws the indices of random examples of each class, like big_vision's `fewshot_lsr`.

    For the same seed, the examples for fewer shots are a subset of those for more shots.
    """
    random = np.random.default_rng(seed)
    labels = np.asarray(labels)
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(num_classes + 1))
    permuted = [random.permutation(order[start:end]) for start, end in itertools.pairwise(starts)]
    return np.concatenate([indices[:shots] for indices in permuted]).astype("int64")


def ridge_scores(x, y, x_test, num_classes, l2=L2):
    """Computes ridge regression scores `(M, num_classes)` for targets -1 and 1, like big_vision's
    `fewshot_lsr`."""
    x = np.asarray(x, "float64")
    mean = x.mean(0)
    deviation = x.std(0) + 1e-5
    x = np.pad((x - mean) / deviation, ((0, 0), (0, 1)), constant_values=_BIAS)
    targets = np.where(np.asarray(y)[:, None] == np.arange(num_classes), 1.0, -1.0)
    if len(x) < x.shape[1]:  # an equivalent system with a smaller matrix
        classifier = x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(len(x)), targets)
    else:
        classifier = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ targets)
    weights = classifier[:-1] / deviation[:, None]
    return x_test @ weights + (_BIAS * classifier[-1] - mean @ weights)


def linear_probe(model, inputs, engine=None):
    """Computes the accuracy of logistic regression, and selects its regularization on held-out
    training examples."""
    return fit_and_score(*_train_and_test(model, inputs))


def fit_and_score(x, y, x_test, y_test):
    """Computes the metrics of `linear_probe` from features and classes."""
    # Import it here, because the import takes about a second.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    _check_counts(y)
    # Standardize the features. Hold out a tenth of the training examples, but no fewer than the
    # number of classes.
    mean = x.mean(0)
    deviation = x.std(0) + 1e-6
    x, x_test = ((part - mean) / deviation for part in (x, x_test))
    held_out = max(len(x) // 10, len(np.unique(y)))
    x_fit, x_val, y_fit, y_val = train_test_split(
        x, y, test_size=held_out, random_state=0, stratify=y
    )

    def fitted(features, labels, inverse):
        with warnings.catch_warnings():
            # Stopping early is also a form of regularization.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return LogisticRegression(C=inverse, max_iter=500).fit(features, labels)

    # Select the regularization on the held-out examples, then fit to all training examples.
    best = max(
        _INVERSE_REGULARIZATIONS,
        key=lambda inverse: fitted(x_fit, y_fit, inverse).score(x_val, y_val),
    )
    return {
        "accuracy": float(fitted(x, y, best).score(x_test, y_test)),
        "inverse_regularization": best,
    }


def knn(model, inputs, engine=None):
    """Computes the accuracy of weighted 20-nearest-neighbor classification, as in DINO (Caron et
    al., 2021)."""
    x, y, x_test, y_test = _train_and_test(model, inputs)
    predicted = nearest_classes(x, y, x_test, len(inputs.train.class_names))
    return {"accuracy": float((predicted == y_test).mean())}


def nearest_classes(x, y, x_test, num_classes, neighbors=20, temperature=0.07):
    """Predicts classes `(M,)` by a vote of nearest neighbors.

    The weight of a vote is `exp(cosine similarity / temperature)`.
    """
    x = _unit(x)
    x_test = _unit(x_test)
    neighbors = min(neighbors, len(x))
    predictions = np.empty(len(x_test), "int64")
    for start in range(0, len(x_test), _ROWS):
        rows = slice(start, start + _ROWS)
        similarity = x_test[rows] @ x.T
        nearest = ops.convert_to_numpy(ops.top_k(similarity, neighbors)[1])
        # Subtract 1, the largest possible similarity, to avoid overflow. This does not change the
        # vote.
        nearest_similarity = np.take_along_axis(similarity, nearest, 1)
        weights = np.exp((nearest_similarity - 1) / temperature).astype("float64")
        votes = np.zeros((len(similarity), num_classes))
        np.add.at(votes, (np.arange(len(votes))[:, None], y[nearest]), weights)
        predictions[rows] = votes.argmax(1)
    return predictions


def _unit(x):
    x = np.asarray(x, "float32")
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1)
