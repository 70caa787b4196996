"""Tests of what a run says about its curves, with the curves of real runs of configs/digits.py.

`good` trains for 30 epochs and `short` for 240 steps; the others are the first 240 steps of longer
runs. `rate_0.1` has --config.schedule.base=0.1, `hundred_images` learns from train[:100] without
shifts, and `sgd_rate_1` has SGD, rate 1 and 200 warm-up steps.
"""

from pathlib import Path

import pytest

from keras_vit.training.curve import reading
from keras_vit.training.metrics import read_metrics

CURVES = Path(__file__).parent / "curves"


def _readings(name, **columns):
    """Returns the line of each evaluation of a run, by step. `columns` replaces columns of the
    evaluations."""
    steps, evaluations = (
        read_metrics(CURVES / f"{name}_{table}.csv") for table in ("metrics", "evaluations")
    )
    evaluations |= columns
    return {
        int(step): reading(
            {column: values[steps["step"] <= step] for column, values in steps.items()},
            {column: values[: i + 1] for column, values in evaluations.items()},
            evaluations["step"][-1],
        )
        for i, step in enumerate(evaluations["step"])
    }


def test_good_run_falls_and_is_flat_at_its_end():
    lines = _readings("good")
    assert lines[60] == lines[120] == lines[180] == ""  # not enough evidence
    assert lines[300] == "still falling: the test loss is 58 % lower than at step 180"
    assert "flat since step 540: the test loss was 0.136 then and is 0.1416" in lines[674]
    assert not any("too high" in line or "apart" in line for line in lines.values())


def test_short_run_should_be_longer():
    assert "62 % lower than at step 120; try --config.total_steps=480" in _readings("short")[240]


def test_run_that_learns_nothing():
    lines = _readings("rate_0.1")
    assert all("nothing is learned" in line for line in lines.values())
    assert "is 2.318, and was 2.302" in lines[240] and "schedule.base=0.03" in lines[240]


def test_rising_loss_means_high_rate():
    lines = _readings("sgd_rate_1")
    assert lines[60] == ""
    assert "too high: the training loss rose from 1.9" in lines[240]
    assert "schedule.base=0.3" in lines[240]


def test_train_and_test_apart():
    lines = _readings("hundred_images")
    # The training loss has risen by less than 10 % of its start, and evaluations are too few.
    assert lines[120] == ""
    assert "apart: the accuracy is 100 % on training images and 83 % on test" in lines[240]


@pytest.mark.parametrize("loss", [0, -1])
def test_constant_loss_is_flat(loss):
    evaluations = read_metrics(CURVES / "good_evaluations.csv")
    lines = _readings("good", loss=0 * evaluations["loss"] + loss)
    assert f"flat since step 60: the test loss was {loss} then and is {loss};" in lines[674]


def test_few_test_images_are_no_evidence():
    evaluations = read_metrics(CURVES / "hundred_images_evaluations.csv")
    lines = _readings("hundred_images", examples=0 * evaluations["examples"] + 20)
    assert not any("apart" in line for line in lines.values())
