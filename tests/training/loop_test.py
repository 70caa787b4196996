"""Tests of functions of the training loop: unreadable examples, best checkpoints, and the number of
steps per call."""

import dataclasses
import json
import math
import types

import numpy as np
import pytest

from keras_vit import data
from keras_vit.data.bad_examples import wrong_label
from keras_vit.training.bad_examples import count_bad
from keras_vit.training.counters import Counters, note_best, score
from keras_vit.training.loop import _steps_in_time


def _bad_examples(failures, num_examples=100, batch_size=10, max_bad_share=0.03, **options):
    """Returns the counter of unreadable examples; `failures` maps steps to examples."""
    images = np.zeros((num_examples, 2, 2, 3), "uint8")
    source = data.arrays(images, np.zeros(num_examples, int), ["a"])
    inputs = data.InputPipeline(source, source, options, batch_size, 0, max_bad_share)
    inputs._failures["train"].update(failures)
    return inputs.bad_examples("train", lambda line: None)


def _engine(gather_hosts=lambda values: [values], num_hosts=1):
    return types.SimpleNamespace(gather_hosts=gather_hosts, num_hosts=num_hosts)


def test_bad_examples_are_summed_over_hosts():
    bad_examples = _bad_examples({10: [1], 12: [2]})
    counters = Counters()
    # The other host has one bad example in every step.
    engine = _engine(lambda values: [values, [0] + [1] * (len(values) - 1)])
    assert count_bad(engine, counters, bad_examples, first=10, steps=2) == [2, 1]
    with pytest.raises(ValueError, match="More than 3 % of 100 .*: 5 bad examples in one epoch"):
        count_bad(engine, counters, bad_examples, first=12, steps=1)
    # A new epoch starts at step 20.
    assert count_bad(engine, counters, bad_examples, first=20, steps=1) == [1]
    assert counters.all_bad_examples == 2 + 1 + 1


def test_wrong_label_stops_all_hosts():
    reports = []

    def gather(values):
        reports.append(values)
        return reports

    bad_examples = _bad_examples({0: [wrong_label(0)]})
    with pytest.raises(ValueError, match="from 0 to 0.*label=0 in example 0"):
        count_bad(_engine(gather), Counters(), bad_examples, first=0, steps=2)
    with pytest.raises(ValueError, match="another host"):
        count_bad(_engine(gather), Counters(), _bad_examples({}), first=0, steps=2)
    assert reports == [[1, 0, 0], [0, 0, 0]]


def test_resumed_run_does_not_count_repeats_of_sampling():
    counters = Counters()
    for step in (11, 12):  # of the same epoch; the run is resumed between them
        repeats = _bad_examples({step: [7, 7]}, max_bad_share=0.01, sampling="balanced")
        assert count_bad(_engine(), counters, repeats, step, steps=1) == [1]


def test_resumed_run_continues_to_count_bad_examples():
    counters = Counters()
    for step, examples in ((11, [1, 2]), (12, [3])):  # step 10 starts an epoch
        count_bad(_engine(), counters, _bad_examples({step: examples}), step, steps=1)
        stored = json.dumps(dataclasses.asdict(counters))
        counters = Counters(**json.loads(stored))
    with pytest.raises(ValueError, match="4 bad examples in one epoch"):
        count_bad(_engine(), counters, _bad_examples({13: [4]}), first=13, steps=1)


def test_repeats_of_one_bad_example_are_tolerated():
    repeats = _bad_examples({0: [7, 7, 7]}, 50, batch_size=128)  # a batch spans three epochs
    assert count_bad(_engine(), Counters(), repeats, first=0, steps=1) == [3]


def _best_steps(evaluations):
    """Returns the best step after each of some evaluations, which are `(accuracy, loss)`."""
    counters = Counters()
    best_steps = []
    for step, (accuracy, loss) in enumerate(evaluations):
        counters.step = step
        note_best(counters, "accuracy", {"accuracy": accuracy, "loss": loss})
        best_steps.append(counters.best_step)
    return best_steps


def test_lower_loss_breaks_ties_of_best_metric():
    evaluations = [(0.5, 9.0), (0.5, 0.9), (0.5, 1.0), (0.6, 2.0), (0.6, math.nan), (0.6, 2.0)]
    assert _best_steps(evaluations) == [0, 1, 1, 3, 3, 3]


def test_loss_decides_without_a_value_of_the_metric():
    evaluations = [(math.nan, 3.0), (math.nan, 1.0), (math.nan, 2.0), (0.1, 9.0)]
    assert _best_steps(evaluations) == [0, 1, 1, 3]


def test_resumed_run_restores_a_best_value_of_nan():
    stored = {"best_step": 2, "best_metric": "area", "best_value": None, "best_loss": 1.0}
    counters = Counters(step=3, **stored)
    note_best(counters, "area", {"area": math.nan, "loss": 2.0})
    assert counters.best_step == 2 and math.isnan(counters.best_value)


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("loss", [math.nan, 0.2, 0.1]),
        ("abs_rel_error", [None, 0.2, 0.1]),
        ("accuracy", [math.nan, 0.1, 0.2]),
    ],
)
def test_better_values_have_higher_scores(metric, values):
    """`values` begins with the worst one."""
    scores = [score(metric, value) for value in values]
    assert scores[0] < scores[1] < scores[2]


@pytest.mark.parametrize(
    ("seconds", "steps", "expected"), [(2.0, 4, 19), (40.0, 1, 1), (0.0, 100, 1_000_000)]
)
def test_calls_take_ten_seconds(seconds, steps, expected):
    assert _steps_in_time(_engine(), seconds, steps) == expected


def test_calls_take_half_of_ten_seconds_on_the_slower_of_two_hosts():
    """A signal stops two hosts after the next call."""
    engine = _engine(lambda milliseconds: [tuple(milliseconds), (2000,)], num_hosts=2)
    assert _steps_in_time(engine, seconds=1.0, steps=10) == 25
