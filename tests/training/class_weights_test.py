"""Runs with weights of classes."""

import numpy as np

from keras_vit import data
from keras_vit.training.metrics import read_metrics

from . import small_run


def _write_weights(path, weight):
    path.write_text("".join(f"{digit},{weight}\n" for digit in range(10)))


def test_class_weights_change_the_loss_but_not_the_accuracy(tmp_path):
    _write_weights(tmp_path / "weights.csv", 5)
    metrics = []
    for class_weights in ("", str(tmp_path / "weights.csv")):
        workdir = tmp_path / f"run{len(metrics)}"
        fields = data.defaults(name="digits", class_weights=class_weights)
        changes = {"total_steps": 1, "eval_every_steps": 0, "schedule": {}, "data": fields}
        small_run.start("alone", workdir, lambda line: None, **changes)
        metrics.append(read_metrics(workdir / "metrics.csv"))
    plain, weighted = metrics
    np.testing.assert_allclose(weighted["loss"], 5 * plain["loss"], rtol=1e-5)
    assert weighted["accuracy"] == plain["accuracy"] > 0


def test_changed_weights_are_other_data(tmp_path):
    path = tmp_path / "weights.csv"
    fingerprints = set()
    for weight in (1, 2):
        _write_weights(path, weight)
        inputs = data.from_config({"class_weights": str(path)}, batch_size=4, seed=0)
        fingerprints.add(inputs.fingerprint())
    assert len(fingerprints) == 2
