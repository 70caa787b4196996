"""Tests of runs with weights of classes."""

import numpy as np

from keras_vit import data

from . import tiny


def test_class_weights_change_the_loss_but_not_the_accuracy(tmp_path):
    path = tmp_path / "weights.csv"
    path.write_text("class 0,5\nclass 1,5\nclass 2,5\n")
    _, plain, _ = tiny.train(steps=1)
    _, weighted, _ = tiny.train(steps=1, inputs=tiny.input_of(class_weights=str(path)))
    loss, accuracy, *_ = plain[0]
    weighted_loss, weighted_accuracy, *_ = weighted[0]
    np.testing.assert_allclose(weighted_loss, 5 * loss, rtol=1e-5)
    assert weighted_accuracy == accuracy > 0


def test_changed_weights_are_other_data(tmp_path):
    path = tmp_path / "weights.csv"
    fingerprints = set()
    for weight in (1, 2):
        path.write_text("".join(f"{digit},{weight}\n" for digit in range(10)))
        inputs = data.from_config({"class_weights": str(path)}, batch_size=4, seed=0)
        fingerprints.add(inputs.fingerprint())
    assert len(fingerprints) == 2
