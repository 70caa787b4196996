"""Tests of how a learning-rate sweep selects a rate and summarizes its runs."""

import csv
import json
import math
import types

import pytest
from ml_collections import FieldReference

from keras_vit import training
from keras_vit.commands import sweep
from keras_vit.commands.sweep_table import best_rate, spread, summary, write_table

# Rates that six digits cannot tell apart. Each rate needs its own folder.
RATES = (0.1234567, 0.1234568, 0.1234569)
HELD_OUT = {"data.train_split": "tune_train", "data.test_split": "tune_val"}
ONE_SEED = {"seeds": (0,), "tune_seed": 0, "held_out": {}}
RESULTS = {"test/accuracy": 0.5, "test/loss": 1.0}
ROW = {"run": "tune", "rate": 0.1, "seed": 0, "name": "a", "accuracy": 0.5, "loss": 1.0}


def _sweep(accuracies=(0.5, 0.7, 0.6), losses=(1.0, 1.0, 1.0)):
    """Sweeps over three rates and two seeds with fake results.

    Returns the rows of the table, and the name and config changes of each run.
    """
    runs = []

    def train(name, changes):
        runs.append((name, changes))
        if name.startswith("rate="):
            return {"test/accuracy": accuracies[len(runs) - 1], "test/loss": losses[len(runs) - 1]}
        return {"test/accuracy": 0.75 + 0.125 * changes["seed"], "test/loss": 0.5}

    rows = sweep.make_rows(train, rates=RATES, seeds=(0, 1), tune_seed=7, held_out=HELD_OUT)
    return rows, runs


def test_sweep_selects_the_rate_on_held_out_data():
    rows, runs = _sweep()
    best = RATES[1]
    tuning = [(f"rate={rate}", {"schedule.base": rate, "seed": 7, **HELD_OUT}) for rate in RATES]
    final = [
        (f"final-rate={best}-seed={seed}", {"schedule.base": best, "seed": seed}) for seed in (0, 1)
    ]
    assert runs == tuning + final
    assert [row["run"] for row in rows] == 3 * ["tune"] + 2 * ["final"]


def test_equal_accuracies_are_ranked_by_loss():
    rows, _ = _sweep([0.5, 0.7, 0.7], losses=(0.1, 0.4, 0.3))
    assert rows[-1]["rate"] == RATES[2]


def test_best_rate_minimizes_the_loss():
    rows = [{**ROW, "rate": rate, "loss": loss} for rate, loss in ((1, 2.0), (2, 1.0), (3, 3.0))]
    assert best_rate(rows, "loss") == 2


def test_diverged_rate_is_not_selected(tmp_path):
    def train(name, changes):
        return None if changes["schedule.base"] == 10 else RESULTS

    numbers_of_rows = []
    rows = sweep.make_rows(
        train, rates=(10, 0.1), write=lambda rows: numbers_of_rows.append(len(rows)), **ONE_SEED
    )
    assert numbers_of_rows == [1, 2, 3]
    assert rows[-1]["rate"] == 0.1
    assert summary(rows)[1].endswith("diverged")
    write_table(tmp_path, rows)
    assert json.loads((tmp_path / "table.json").read_text())[0]["accuracy"] is None
    with pytest.raises(ValueError, match="diverged at every rate; pass lower --rates"):
        sweep.make_rows(train, rates=(10,), **ONE_SEED)


def test_summary_ends_with_mean_and_deviation():
    rows, _ = _sweep()
    # The accuracies of the final runs are 0.75 and 0.875.
    line = summary(rows)[-1]
    assert line == "final accuracy 81.25 %, standard deviation 0.088 over 2 seeds"
    assert "deviation" not in summary(rows[:-1])[-1]


def test_tables_contain_the_rows(tmp_path):
    rows, _ = _sweep()
    write_table(tmp_path, rows)
    assert json.loads((tmp_path / "table.json").read_text()) == rows
    lines = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert lines == [{name: str(value) for name, value in row.items()} for row in rows]


def test_changed_sweep_is_not_told_to_pass_change(tmp_path, parse):
    parse(sweep)
    training.Workdir(tmp_path, sweep.FLAGS.config.to_dict()).claim()
    (tmp_path / "checkpoints/000000001").mkdir(parents=True)
    (tmp_path / "checkpoints/000000001/finished").write_text("{}")
    with pytest.raises(ValueError, match="seed was 0 and is 1. Choose another workdir. Received"):
        sweep._results(str(tmp_path), {"seed": 1})


def test_folds_are_summarized():
    accuracies = {"1/3": 0.5, "2/3": 0.75, "3/3": 1.0}

    def train(name, changes):
        return {**RESULTS, "test/accuracy": accuracies[changes["data.fold"]]}

    rows = sweep.make_rows(train, rates=(0.1,), folds=3, **ONE_SEED)
    assert [row["name"] for row in rows] == [f"rate=0.1-seed=0-fold={i}-of-3" for i in (1, 2, 3)]
    assert spread(rows, "fold")[0] == {
        "rate": 0.1,
        "metric": "accuracy",
        "mean": 0.75,
        "deviation": 0.25,
        "lowest": 0.5,
        "highest": 1.0,
        "runs": 3,
        "diverged": 0,
    }
    assert summary(rows)[4] == (
        "rate 0.1: mean accuracy 75.00 %, standard deviation 0.25, from accuracy 50.00 % to "
        "accuracy 100.00 % over 3 runs"
    )
    rows.append({**rows[0], "accuracy": math.nan, "loss": math.nan})
    assert summary(rows)[-2].endswith("over 3 runs, without 1 that diverged")


def test_folds_may_lack_a_metric():
    row = {**ROW, "run": "fold"}
    rows = [row, {**row, "rare": 0.25, "area": math.nan}, {**row, "rare": 0.75, "area": 0.5}]
    runs = {entry["metric"]: entry["runs"] for entry in spread(rows, "fold")}
    assert runs == {"accuracy": 3, "loss": 3, "rare": 2, "area": 1}


def test_failed_evaluator_is_no_divergence():
    failed = {**ROW, "area": math.nan}
    rows = [failed, {**ROW, "rate": 0.2, "area": 0.5}]
    assert best_rate(rows, "area") == 0.2
    assert "diverged" not in "".join(summary(rows, "area"))
    with pytest.raises(ValueError, match="No run has a value"):
        best_rate([failed], "area")


def test_fields_that_depend_on_the_data_are_computed_for_each_fold(parse):
    parse(sweep)
    config = sweep.FLAGS.config
    length_of_fold = types.SimpleNamespace(fn=lambda _: len(config.data.fold), args=())
    with config.unlocked():
        config.steps = FieldReference(0, op=length_of_fold)
    changed = sweep.config_with({"data.fold": "1/5", "seed": 3})
    assert (changed.steps, changed.seed, changed.data.fold) == (3, 3, "1/5")
    assert (config.steps, config.seed, config.data.fold) == (0, 0, "")
