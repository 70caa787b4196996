"""Tests of the test examples that reports show, and of their order."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data, files
from keras_vit.evaluation import report
from keras_vit.evaluation.samples import read_test_examples, sample_indices

from ..data.helpers import by_index, sequential
from .colors import color_inputs, mean_color_model, unreadable, with_labels


def in_two_shards(source):
    return sequential(source, [6, 14])


@pytest.mark.parametrize("mistakes", [0, 2])
def test_report_lists_only_mistakes(mistakes, tmp_path, monkeypatch):
    inputs = color_inputs(test=11)
    # The model classifies all colors correctly, so the examples with changed labels are mistakes.
    labels = inputs.test.labels.copy()
    labels[:mistakes] = (labels[:mistakes] + 1) % 3
    label_of = tf.constant(labels)
    inputs = with_labels(inputs, lambda index: label_of[index])
    shown = []

    def draw(page, name, title, text, function, *arguments, **options):
        if name == "worst.png":
            _, labels_of_pictures, *_ = arguments
            shown.extend(labels_of_pictures)

    monkeypatch.setattr(report.Page, "draw", draw)
    page = report.write_report(mean_color_model(), inputs, tmp_path)
    assert sorted(shown) == sorted(labels[:mistakes])
    assert files.read_text(page).count(", predicted class") == mistakes


def test_samples_spread_over_sorted_classes():
    labels = np.repeat(np.arange(3), 15)
    source = data.arrays(np.zeros((45, 8, 8, 3), np.uint8), labels, "abc")
    inputs = data.InputPipeline(source, source, {}, batch_size=32, seed=0, max_bad_share=0.0)
    _, shown_labels, _ = read_test_examples(inputs, sample_indices(inputs, 6))
    assert shown_labels.sum(0).tolist() == [2, 2, 2]
    _, shown_labels, _ = read_test_examples(inputs, sample_indices(inputs, 64))
    assert shown_labels.sum(0).tolist() == [15, 15, 15]


@pytest.mark.parametrize(
    ("kind", "expected_sample"), [(by_index, [0, 6, 12, 19]), (in_two_shards, [0, 1, 2, 3])]
)
def test_selected_examples_keep_their_order(kind, expected_sample):
    inputs = unreadable(color_inputs(test=20), "test", [3])
    expected = inputs.test.labels[[7, 15, 0]].tolist()
    test = kind(dataclasses.replace(inputs.test, labels=None))
    inputs = dataclasses.replace(inputs, test=test)
    images, labels, _ = read_test_examples(inputs, [7, 3, 15, 0])
    assert labels.argmax(1).tolist() == expected
    # The brightest channel of an image is the number of its class.
    assert images.mean((1, 2)).argmax(1).tolist() == expected
    assert sorted(sample_indices(inputs, 4)) == expected_sample


def test_samples_with_unknown_labels_are_evenly_spaced():
    inputs = with_labels(color_inputs(test=7), lambda index: tf.range(2), multi_label=True)
    assert sample_indices(inputs, 3).tolist() == [0, 3, 6]


@pytest.mark.parametrize("kind", ["masks", "none"])
def test_examples_without_classes_are_read(kind):
    """Batches are as large as masks are wide, so that their axes could be confused."""
    inputs = color_inputs(test=20)
    source = inputs.test

    def read(index):
        return {"image": source.read(index)["image"], "mask": tf.zeros((8, 8), tf.int32)}

    names = ("a", "b") if kind == "masks" else ()
    test = dataclasses.replace(source, read=read, labels=None, class_names=names, target=kind)
    inputs = dataclasses.replace(inputs, train=test, test=test, batch_size=8, target=kind)
    found, _, _ = read_test_examples(inputs, [17, 3])
    pixels = np.stack([source.read(index)["image"] for index in (17, 3)])
    np.testing.assert_allclose(found, pixels / 127.5 - 1, atol=1e-6)
