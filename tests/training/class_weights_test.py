"""Runs with weights of classes, and runs whose metric has no value."""

import math

import numpy as np
import pytest

from keras_vit import data, training
from keras_vit.training.loop import Counters, note_best
from keras_vit.training.metrics import read_metrics

from . import small_run


@pytest.mark.parametrize("parts", [1, 2])
def test_class_weights_change_the_loss_but_not_the_accuracy(parts, tmp_path):
    path = tmp_path / "weights.csv"
    path.write_text("".join(f"{digit},5\n" for digit in range(10)))
    rows = []
    for class_weights in ("", str(path)):
        config = small_run.config_of(
            total_steps=3,
            eval_every_steps=0,
            accumulate_steps=parts,
            data=data.defaults(name="digits", class_weights=class_weights),
        )
        workdir = training.Workdir(tmp_path / f"run{len(rows)}", config.to_dict())
        training.run(config, workdir, lambda line: None)
        rows.append(
            {name: column[0] for name, column in read_metrics(workdir.path / "metrics.csv").items()}
        )
    np.testing.assert_allclose(rows[1]["loss"], 5 * rows[0]["loss"], rtol=1e-5)
    assert rows[1]["accuracy"] == rows[0]["accuracy"] > 0


def test_bad_weights_are_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match="no weight for"):
        path = tmp_path / "weights.csv"
        path.write_text("0,1\n")
        data.from_config({"class_weights": str(path)}, batch_size=4, seed=0)


def test_changed_weights_are_other_data(tmp_path):
    path = tmp_path / "weights.csv"
    fingerprints = set()
    for weight in (1, 2):
        path.write_text("".join(f"{digit},{weight}\n" for digit in range(10)))
        inputs = data.from_config({"class_weights": str(path)}, batch_size=4, seed=0)
        fingerprints.add(inputs.fingerprint())
    assert len(fingerprints) == 2


def test_the_loss_decides_without_a_value_of_the_metric():
    counters = Counters()
    for counters.step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
        note_best(counters, "area", {"area": math.nan, "loss": loss})
    assert counters.best_step == 2
    # A checkpoint stores NaN as null.
    counters = Counters(best_step=2, best_metric="area", best_value=None, best_loss=1.0)
    counters.step = 3
    note_best(counters, "area", {"area": math.nan, "loss": 2.0})
    assert counters.best_step == 2 and math.isnan(counters.best_value)
    counters.step = 4
    note_best(counters, "area", {"area": 0.1, "loss": 9.0})
    assert counters.best_step == 4
