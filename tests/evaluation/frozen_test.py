"""Tests of evaluators of frozen features: few-shot, nearest neighbors and linear probe.

`ridge_test.py` tests the regression of few-shot evaluation.
"""

import dataclasses
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import evaluation
from keras_vit.evaluation import collecting, frozen

from ..data.helpers import sequential
from ..shared import SIZES
from .colors import color_inputs, small_vit, unreadable, with_labels


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return small_vit()


@pytest.fixture
def collected(monkeypatch):
    """Returns a list of the splits of which features are computed."""
    splits = []
    collect = frozen.collect

    def record_split(model, compute, inputs, split, indices):
        splits.append(split)
        return collect(model, compute, inputs, split, indices)

    monkeypatch.setattr(frozen, "collect", record_split)
    return splits


def test_frozen_features_distinguish_colors(model, caplog):
    inputs = color_inputs(train=60)
    with caplog.at_level(logging.WARNING, "keras_vit"):
        metrics = evaluation.evaluate(model, ["fewshot", "knn", "linear_probe"], inputs)
    assert metrics["knn/accuracy"] == metrics["linear_probe/accuracy"] == 1
    assert 1 / 3 <= metrics["fewshot/1shot"] <= metrics["fewshot/25shot"] == 1
    # Each class has 20 examples, so 25 shots use all of them.
    assert "3 of 3 classes have fewer than 25 training images" in caplog.text


@pytest.mark.full
def test_evaluators_share_features(model, collected):
    inputs = color_inputs()
    apart = {}
    for name in ("knn", "fewshot"):
        apart |= evaluation.evaluate(model, [name], inputs)
    assert collected == 2 * ["train", "test"]
    collected.clear()
    assert evaluation.evaluate(model, ["knn", "fewshot"], inputs) == apart
    assert collected == ["train", "test"]


@pytest.mark.full
def test_evaluators_share_features_of_their_own_dataset(model, collected):
    evaluation.evaluate(model, ["knn:digits", "linear_probe:digits"])
    assert collected == ["train", "test"]


@pytest.mark.full
def test_features_are_computed_again_after_weights_change(collected):
    model = small_vit()
    inputs = color_inputs()
    with collecting.reuse_compiled():
        frozen.representations(model, inputs)
        frozen.representations(model, inputs)
        assert collected == ["test"]
        model.set_weights([weight + 1 for weight in model.get_weights()])
        frozen.representations(model, inputs)
    assert collected == ["test", "test"]


def test_fewshot_computes_features_once(model, monkeypatch):
    num_train_images = []
    representations = frozen.representations

    def record_number(model, inputs, split="test", indices=None):
        if split == "train":
            num_train_images.append(len(indices))
        return representations(model, inputs, split, indices)

    monkeypatch.setattr(frozen, "representations", record_number)
    monkeypatch.setattr(frozen, "SHOTS", (1, 2))
    metrics = frozen.fewshot(model, color_inputs(train=300))
    # Three seeds each draw two images of each of three classes. Some may be the same.
    assert len(num_train_images) == 1 and 6 <= num_train_images[0] <= 18
    assert set(metrics) == {"1shot", "2shot"}


def test_neighbor_votes_are_weighted_by_similarity():
    x = np.array([[1.0, 0], [0.9, 0.1], [0, 1], [0.1, 0.9], [0.2, 0.8]])
    y = np.array([0, 0, 1, 1, 1])
    test = np.array([[2.0, 0.1]])
    # More neighbors have class 1, but their similarity is low.
    assert frozen.nearest_classes(x, y, test, 2).tolist() == [0]
    assert frozen.nearest_classes(x, y, test, 2, temperature=99).tolist() == [1]


@pytest.mark.parametrize("test", [[1.0, 0.0], [1.0, 0.5]])
def test_first_of_equally_similar_neighbors_vote(test):
    # 1000 examples are equally similar. The first 20 of them vote, of which 11 have class 0.
    x = np.repeat([[1.0, 0.0], [0.0, 1.0]], [1000, 1], axis=0)
    y = np.ones(1001, int)
    y[:11] = 0
    assert frozen.nearest_classes(x, y, np.array([test]), 2).tolist() == [0]


def test_linear_probe_requires_two_examples_per_class(model):
    evaluator = evaluation.get(["linear_probe"])["linear_probe"]
    evaluator.check(model, color_inputs(train=6))
    with pytest.raises(ValueError, match="Received: 3 classes, the smallest with 1 examples"):
        evaluator.check(model, color_inputs(train=5))


def test_fit_requires_two_classes():
    x = np.zeros((3, 2), "float32")
    y = np.zeros(3, int)
    with pytest.raises(ValueError, match="at least two classes"):
        frozen.fit_and_score(x, y, x, y)


def test_rejects_multiple_labels(model):
    inputs = with_labels(color_inputs(train=6), lambda index: tf.range(2))
    with pytest.raises(ValueError, match="with several labels"):
        evaluation.evaluate(model, ["knn"], inputs)


def test_unreadable_image_changes_no_other_draw(monkeypatch):
    inputs = color_inputs(train=90)
    labels = inputs.train.labels
    unreadable_index = frozen.draw_shots(labels, 1, 3, seed=0)[0]
    drawn = []

    def use_indices_as_features(model, inputs, split="test", indices=None):
        indices = np.arange(90) if indices is None else indices
        readable = indices != unreadable_index
        return indices[readable], labels[indices][readable], readable

    def record_features(x, y, x_test, num_classes):
        drawn.append(x.tolist())
        return np.zeros((len(x_test), num_classes))

    monkeypatch.setattr(frozen, "representations", use_indices_as_features)
    monkeypatch.setattr(frozen, "ridge_scores", record_features)
    monkeypatch.setattr(frozen, "SHOTS", (5,))
    frozen.fewshot(None, inputs)
    draws = [frozen.draw_shots(labels, 5, 3, seed) for seed in frozen.SEEDS]
    assert drawn == [sorted(draw[draw != unreadable_index]) for draw in draws]


@pytest.mark.full
def test_fewshot_skips_unreadable_and_missing_examples(model, caplog):
    inputs = unreadable(color_inputs(train=90), "train", [5])
    # The second shard lacks its last two records.
    train = sequential(dataclasses.replace(inputs.train, labels=None), [30, 62])
    with caplog.at_level(logging.WARNING, "keras_vit"):
        frozen.fewshot(model, dataclasses.replace(inputs, train=train))
    assert "train: skipped 3 of 92 examples" in caplog.text


def test_masked_model_is_evaluated_with_labels():
    model = keras_vit.MaskedPatchVisionTransformer(
        **SIZES, input_shape=(8, 8, 3), classes=4, classifier="token_unpooled"
    )
    inputs = dataclasses.replace(color_inputs(), target="none")
    assert 0 <= evaluation.evaluate(model, ["knn"], inputs)["knn/accuracy"] <= 1
