"""Tests of how a learning-rate sweep selects a rate and summarizes its runs."""

import csv
import json
import math
import types

import pytest
from ml_collections import ConfigDict, FieldReference

from keras_vit import training
from keras_vit.commands import sweep
from keras_vit.configs import digits

ONE_SEED = {"seeds": (0,), "tune_seed": 0, "held_out": {}}


def _sweep(accuracies, losses=(1.0, 1.0, 1.0)):
    """Sweeps over three rates and two seeds with fake results.

    Returns the rows of the table, and the name and config changes of each run.
    """
    runs = []

    def train(name, changes):
        runs.append((name, changes))
        if name.startswith("rate="):
            return {"test/accuracy": accuracies[len(runs) - 1], "test/loss": losses[len(runs) - 1]}
        return {"test/accuracy": 0.75 + 0.125 * changes["seed"], "test/loss": 0.5}

    held_out = {"data.train_split": "tune_train", "data.test_split": "tune_val"}
    rows = sweep.make_rows(
        train, rates=(0.1, 0.2, 0.3), seeds=(0, 1), tune_seed=7, held_out=held_out
    )
    return rows, runs


def test_sweep_selects_the_rate_on_held_out_data():
    rows, runs = _sweep([0.5, 0.7, 0.6])
    for _, changes in runs[:3]:
        assert changes["data.train_split"] == "tune_train"
        assert changes["data.test_split"] == "tune_val"
        assert changes["seed"] == 7
    assert runs[3:] == [
        ("final-rate=0.2-seed=0", {"schedule.base": 0.2, "seed": 0}),
        ("final-rate=0.2-seed=1", {"schedule.base": 0.2, "seed": 1}),
    ]
    assert [row["run"] for row in rows] == 3 * ["tune"] + 2 * ["final"]


def test_equal_accuracies_are_ranked_by_loss():
    rows, _ = _sweep([0.5, 0.7, 0.7], losses=(0.1, 0.4, 0.3))
    assert rows[-1]["rate"] == 0.3


def test_best_rate_minimizes_the_loss():
    losses = {0.1: 2.0, 0.2: 1.0, 0.3: 3.0}
    rows = [{"rate": rate, "loss": loss, "accuracy": 0.5} for rate, loss in losses.items()]
    assert sweep.best_rate(rows, "loss") == 0.2


def test_diverged_rate_is_not_selected(tmp_path):
    def train(name, changes):
        if changes["schedule.base"] == 10:
            return None
        return {"test/accuracy": 0.5, "test/loss": 0.1, "test/error": 0.2}

    written = []
    rows = sweep.make_rows(
        train, rates=(10, 0.1), write=lambda rows: written.append(len(rows)), **ONE_SEED
    )
    assert written == [1, 2, 3]
    assert rows[-1]["rate"] == 0.1
    assert sweep.summary(rows)[1].endswith("diverged")
    sweep.write_table(tmp_path, rows)
    assert json.loads((tmp_path / "table.json").read_text())[0]["accuracy"] is None
    with pytest.raises(ValueError, match="diverged at every rate; pass lower --rates"):
        sweep.make_rows(train, rates=(10,), **ONE_SEED)


def test_nearly_equal_rates_have_separate_folders():
    names = []

    def train(name, changes):
        names.append(name)
        return {"test/accuracy": 0.5, "test/loss": 1}

    sweep.make_rows(train, rates=(0.1234567, 0.1234568, 0.1), **ONE_SEED)
    assert names[:3] == ["rate=0.1234567", "rate=0.1234568", "rate=0.1"]


def test_summary_ends_with_mean_and_deviation():
    rows, _ = _sweep([0.5, 0.7, 0.6])
    # The accuracies of the final runs are 0.75 and 0.875.
    line = sweep.summary(rows)[-1]
    assert line == "final accuracy 81.25 %, standard deviation 0.088 over 2 seeds"
    assert "deviation" not in sweep.summary(rows[:-1])[-1]


def test_tables_contain_the_rows(tmp_path):
    rows, _ = _sweep([0.5, 0.7, 0.6])
    sweep.write_table(tmp_path, rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.csv", "table.json"]
    assert json.loads((tmp_path / "table.json").read_text()) == rows
    with open(tmp_path / "table.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["name"] for line in lines] == [row["name"] for row in rows]
    assert [float(line["accuracy"]) for line in lines] == [row["accuracy"] for row in rows]


def test_changed_sweep_is_not_told_to_pass_change(tmp_path, monkeypatch):
    config = digits.get_config()
    training.Workdir(tmp_path, config.to_dict()).claim()
    (tmp_path / "checkpoints/000000001").mkdir(parents=True)
    (tmp_path / "checkpoints/000000001/finished").write_text("{}")
    monkeypatch.setattr(sweep, "FLAGS", types.SimpleNamespace(config=config))
    with pytest.raises(ValueError, match="seed was 0 and is 1. Choose another workdir"):
        sweep._results(str(tmp_path), {"seed": 1})


def test_folds_are_summarized():
    accuracies = {"1/3": 0.5, "2/3": 0.75, "3/3": 1.0}

    def train(name, changes):
        return {"test/accuracy": accuracies[changes["data.fold"]], "test/loss": 1.0}

    rows = sweep.make_rows(train, rates=(0.1,), folds=3, **ONE_SEED)
    assert [row["name"] for row in rows] == [f"rate=0.1-seed=0-fold={i}-of-3" for i in (1, 2, 3)]
    spread = sweep.spread(rows)[0]
    assert (spread["mean"], spread["deviation"]) == (0.75, 0.25)
    assert (spread["lowest"], spread["highest"]) == (0.5, 1.0)
    assert sweep.summary(rows)[4] == (
        "rate 0.1: mean accuracy 75.00 %, standard deviation 0.25, from accuracy 50.00 % to "
        "accuracy 100.00 % over 3 runs"
    )
    rows.append({**rows[0], "accuracy": math.nan, "loss": math.nan})
    assert sweep.summary(rows)[-2].endswith("over 3 runs, without 1 that diverged")


def test_folds_may_lack_a_metric():
    row = {"run": "fold", "rate": 0.1, "seed": 0, "name": "a", "accuracy": 0.5, "loss": 1.0}
    rows = [row, {**row, "rare": 0.25, "area": math.nan}, {**row, "rare": 0.75, "area": 0.5}]
    runs = {entry["metric"]: entry["runs"] for entry in sweep.spread(rows)}
    assert runs == {"accuracy": 3, "loss": 3, "rare": 2, "area": 1}


def test_failed_evaluator_is_no_divergence():
    row = {"run": "tune", "seed": 0, "name": "a", "loss": 1.0}
    failed = {**row, "rate": 0.1, "area": math.nan}
    rows = [failed, {**row, "rate": 0.2, "area": 0.5}]
    assert sweep.best_rate(rows, "area") == 0.2
    assert "diverged" not in "".join(sweep.summary(rows, "area"))
    with pytest.raises(ValueError, match="No run has a value"):
        sweep.best_rate([failed], "area")


def test_fields_that_depend_on_the_data_are_computed_for_each_fold(monkeypatch):
    config = ConfigDict({"data": {"fold": "", "path": "a"}, "seed": 0})
    length_of_fold = types.SimpleNamespace(fn=lambda _: len(config.data.fold), args=())
    config.steps = FieldReference(0, op=length_of_fold)
    monkeypatch.setattr(sweep, "FLAGS", types.SimpleNamespace(config=config))
    changed = sweep.config_with({"data.fold": "1/5", "seed": 3})
    assert (changed.steps, changed.seed, changed.data.fold) == (3, 3, "1/5")
    assert (config.steps, config.seed, config.data.fold) == (0, 0, "")
