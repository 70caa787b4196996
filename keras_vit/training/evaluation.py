"""The evaluation of a run: the metrics of its task and its evaluators, and what could not be read."""

import logging

import numpy as np

log = logging.getLogger(__name__)


def make_evaluate(config, engine, inputs, evaluators, write):
    """Returns `evaluate()`, which evaluates the model of a run as it is; all hosts must call it together.

    Args:
        config: the recipe.
        engine: the `Engine`, built.
        inputs: the `data.InputPipeline`.
        evaluators: by the names in `config.evals`.
        write: takes lines of text; a line about an example is written once, whatever the number of evaluations.

    Returns:
        `evaluate()`, to a dict of floats: "loss", the metrics of the task, "examples", "bad_examples", and those of the
        evaluators.
    """
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
    host = {"num_hosts": engine.num_hosts, "host_index": engine.host_index}
    bad_examples, error = inputs.bad_examples("test", **host, warn=warn), None
    try:
        for step in range(-(-inputs.test.num_examples // inputs.batch_size)):
            bad_examples.update(step, np.zeros(inputs.batch_size // engine.num_hosts))
    except ValueError as reason:
        error = reason
    hosts = engine.gather_hosts([bad_examples.count, int(error is not None)])
    if error:
        raise error
    if any(failed for _, failed in hosts):
        raise ValueError(
            "Another host cannot read more than `max_bad_share` of the test examples; its log names them. "
            f"Received: (bad examples, failed) of each host {hosts}"
        )
    count = sum(count for count, _ in hosts)
    bad_examples.check_share(count)
    return count
