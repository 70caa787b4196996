"""Tests of functions of the training loop: unreadable examples, best checkpoints, and the number of
steps per call."""

import dataclasses
import json
import math
import types

import numpy as np
import pytest

from keras_vit import data
from keras_vit.training.loop import Counters, _count_bad, _steps_in_time, note_best, score


def _inputs(num_examples, batch_size, max_bad_share, failures, **options):
    """Returns inputs of which some examples are unreadable. `failures` maps steps to examples."""
    images = np.zeros((num_examples, 2, 2, 3), "uint8")
    source = data.arrays(images, np.zeros(num_examples, int), ["a"])
    inputs = data.InputPipeline(source, source, options, batch_size, 0, max_bad_share)
    inputs._failures["train"].update(failures)
    return inputs


def _bad_examples(*arguments, **options):
    return _inputs(*arguments, **options).bad_examples("train", lambda line: None)


def _engine(gather_hosts=lambda values: [values]):
    return types.SimpleNamespace(gather_hosts=gather_hosts)


def test_bad_examples_are_summed_over_hosts():
    """At most 4 of 100 examples may be bad in an epoch."""
    bad_examples = _bad_examples(100, 10, 0.04, {10: [1, 2], 12: [3]})
    counters = Counters()
    engine = _engine(lambda values: [values, [0] + [1] * (len(values) - 1)])
    assert _count_bad(engine, counters, bad_examples, 10, 2) == [3, 1]
    assert counters.all_bad_examples == 4
    with pytest.raises(ValueError, match="More than 4 % of 100 .*: 6 bad examples in one epoch"):
        _count_bad(engine, counters, bad_examples, 12, 1)
    assert _count_bad(engine, counters, bad_examples, 20, 1) == [1]  # a new epoch starts at step 20


def test_wrong_label_stops_all_hosts():
    """The first call is that of host 0, which has the wrong label; the second is that of host 1,
    which has none."""
    inputs = _inputs(4, 4, 1.0, {0: [-2]})  # -2 is a wrong label of example 0
    reports = []

    def gather(values):
        reports.append(values)
        return reports

    with pytest.raises(ValueError, match="from 0 to 0.*label=0 in example 0"):
        _count_bad(_engine(gather), Counters(), inputs.bad_examples("train"), 0, 2)
    with pytest.raises(ValueError, match="another host"):
        _count_bad(_engine(gather), Counters(), inputs.bad_examples("train"), 0, 2)
    assert reports == [[1, 0, 0], [0, 0, 0]]


def test_resumed_run_does_not_count_repeats_of_sampling():
    counters = Counters()
    for step in (11, 12):  # of the same epoch; the run is resumed between them
        bad_examples = _bad_examples(50, 10, 0.01, {step: [7, 7]}, sampling="balanced")
        assert _count_bad(_engine(), counters, bad_examples, step, 1) == [1]


def test_resumed_run_continues_to_count_bad_examples():
    counters = Counters()
    for step, examples in ((11, [1, 2]), (12, [3])):  # step 10 starts an epoch
        bad_examples = _bad_examples(100, 10, 0.03, {step: examples})
        _count_bad(_engine(), counters, bad_examples, step, 1)
        stored = json.dumps(dataclasses.asdict(counters))
        counters = Counters(**json.loads(stored))
    bad_examples = _bad_examples(100, 10, 0.03, {13: [4]})
    with pytest.raises(ValueError, match="4 bad examples in one epoch"):
        _count_bad(_engine(), counters, bad_examples, 13, 1)


def test_repeats_of_one_bad_example_are_tolerated():
    bad_examples = _bad_examples(50, 128, 0.01, {0: [7, 7, 7]})  # a batch spans three epochs
    assert _count_bad(_engine(), Counters(), bad_examples, 0, 1) == [3]


def test_lower_loss_breaks_ties_of_best_metric():
    counters = Counters()
    best_steps = []
    evaluations = [(0.5, 9.0), (0.5, 0.9), (0.5, 1.0), (0.6, 2.0), (0.6, math.nan)]
    for step, (accuracy, loss) in enumerate(evaluations):
        counters.step = step
        note_best(counters, "accuracy", {"accuracy": accuracy, "loss": loss})
        best_steps.append(counters.best_step)
    assert best_steps == [0, 1, 1, 3, 3]


def test_loss_decides_without_a_value_of_the_metric():
    counters = Counters()
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
        counters.step = step
        note_best(counters, "area", {"area": math.nan, "loss": loss})
    assert counters.best_step == 2
    # A checkpoint stores NaN as null.
    counters = Counters(step=3, best_step=2, best_metric="area", best_value=None, best_loss=1.0)
    note_best(counters, "area", {"area": math.nan, "loss": 2.0})
    assert counters.best_step == 2 and math.isnan(counters.best_value)
    counters.step = 4
    note_best(counters, "area", {"area": 0.1, "loss": 9.0})
    assert counters.best_step == 4


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("loss", [math.nan, 0.2, 0.1]),
        ("abs_rel_error", [None, 0.2, 0.1]),
        ("accuracy", [math.nan, 0.1, 0.2]),
        ("accuracy", [None, 0.1, 0.2]),
    ],
)
def test_better_values_have_higher_scores(metric, values):
    """`values` begins with the worst one."""
    scores = [score(metric, value) for value in values]
    assert scores[0] < scores[1] < scores[2]


def test_calls_take_ten_seconds_on_the_slowest_host():
    def steps_in_time(seconds, steps, other_hosts=()):
        hosts = [(int(1000 * other),) for other in other_hosts]
        engine = _engine(lambda values: [tuple(values), *hosts])
        engine.num_hosts = 1 + len(hosts)
        return _steps_in_time(engine, seconds, steps)

    assert steps_in_time(2.0, 4) == 19
    assert steps_in_time(40.0, 1) == 1
    assert steps_in_time(0.0, 100) == 1_000_000
    assert steps_in_time(1.0, 10, [2.0]) == 25  # a signal stops two hosts after the next call
