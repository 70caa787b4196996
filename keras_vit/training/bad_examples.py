"""Counts the unreadable examples of a run, over all hosts."""

import logging

import numpy as np

log = logging.getLogger(__name__)


def check_test_examples(engine, inputs):
    """Raises a `ValueError` if no test example is usable, or too many are unreadable before the
    first usable one."""
    bad_examples = inputs.bad_examples("test", log.debug)
    batches = inputs.eval_batches(engine.num_hosts, engine.host_index)
    for step, (_, _, weights) in enumerate(batches):
        bad_examples.check(step, *gather_bad(engine, bad_examples, [step]))
        usable = int(np.count_nonzero(np.asarray(weights)))
        if any(usable_of_host for (usable_of_host,) in engine.gather_hosts([usable])):
            return
    raise ValueError(
        "At least one evaluation example must be readable and labeled. Received: "
        f"{inputs.test.num_examples} examples"
    )


def count_bad(engine, counters, bad_examples, first, steps):
    """Returns the number of unreadable examples in each step from `first` to `first + steps - 1`,
    over all hosts."""
    # Restore the count of the run before it was resumed. With sampling, it may contain the same
    # examples as the following steps.
    if counters.bad_in_epoch and not bad_examples.is_sampled:
        bad_examples.counts.setdefault(*counters.bad_in_epoch)
    totals = gather_bad(engine, bad_examples, range(first, first + steps))
    for i, total in enumerate(totals):
        bad_examples.check(first + i, total, endless=True)
    counters.all_bad_examples += sum(totals)
    counters.bad_in_epoch = max(bad_examples.counts.items(), default=())
    return totals


def gather_bad(engine, bad_examples, steps):
    """Returns the number of bad examples of each step, over all hosts. A wrong label raises an
    error on every host."""
    error = None
    counts = [0] * len(steps)
    try:
        counts = [bad_examples.update(step) for step in steps]
    except ValueError as wrong_label:
        error = wrong_label
    # Other hosts would wait forever for a host that raises its error before it has reported.
    reports = engine.gather_hosts([int(error is not None), *counts])
    failures, *totals = map(sum, zip(*reports))
    if failures:
        raise error or ValueError(
            "Labels must be in range. Received: an example of another host; see its log"
        )
    return totals
