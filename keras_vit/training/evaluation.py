"""The evaluation of a run: the metrics of its task and its evaluators, and what could not be read."""

import logging

log = logging.getLogger(__name__)


def make_evaluate(config, engine, inputs, evaluators, write):
    """Returns `evaluate()`, which evaluates the model of a run as it is; all hosts must call it together."""
    written = set()

    def warn(line):
        if line not in written:
            written.add(line)
            (write if engine.host_index == 0 else log.warning)(f"test: {line}")

    def evaluate():
        try:
            metrics = engine.evaluate()
        except ValueError:
            _count_bad_examples(inputs, engine, warn)  # which may be the reason
            raise
        metrics["bad_examples"] = _count_bad_examples(inputs, engine, warn)
        model = engine.gather_model() if config.evals else None
        for name in config.evals:
            values = evaluators[name].evaluate(model, inputs, engine)
            metrics |= {f"{name}/{metric}": value for metric, value in values.items()}
        return metrics

    return evaluate


def _count_bad_examples(inputs, engine, warn):
    """How many test examples could not be read in the evaluation that has just ended, on all hosts.

    A `ValueError` on all hosts if they are more than `max_bad_share`.
    """
    bad_examples = inputs.bad_examples("test", warn)
    for step in range(-(-inputs.test.num_examples // inputs.batch_size)):
        bad_examples.update(step)
    count = sum(host_count for (host_count,) in engine.gather_hosts([bad_examples.count]))
    bad_examples.check(0, count)
    return count
