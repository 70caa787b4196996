"""Counts the steps of a run, and remembers which of its evaluations is the best."""

import dataclasses
import math


@dataclasses.dataclass
class Counters:
    """The progress of a run, stored in its checkpoints."""

    step: int = 0  # number of completed steps, which also determines the position in the data
    evaluated_step: int = 0
    skipped_steps: int = 0  # non-finite steps, which changed no weights
    train_seconds: float = 0.0  # excluding evaluations and the saving of checkpoints
    best_step: int = -1
    best_value: float | None = None
    best_metric: str = ""
    best_loss: float | None = None  # at the best step
    data: tuple = ()  # `InputPipeline.fingerprint()`
    all_bad_examples: int = 0  # unreadable training examples, over all hosts
    bad_in_epoch: tuple = ()  # the last epoch with such examples, and their number

    def __post_init__(self):
        if self.best_value is None:  # the JSON of a checkpoint stores NaN as null
            self.best_value = math.nan


def note_best(counters, name, metrics):
    """Records the evaluation at `counters.step` if its metric `name` is the best so far; the loss
    breaks ties, also between NaN."""
    value = metrics[name]
    loss = metrics["loss"]
    scores = score(name, value), score("loss", loss)
    best_scores = score(name, counters.best_value), score("loss", counters.best_loss)
    # The metric differs in the first evaluation, or if --change selected another one.
    if counters.best_metric != name or scores > best_scores:
        counters.best_metric = name
        counters.best_value = value
        counters.best_loss = loss
        counters.best_step = counters.step


def score(name, value):
    """Returns a number that is higher for a better value of a metric, which is a lower value if the
    name ends in "loss" or "error". NaN, null in a checkpoint, is worst."""
    if value is None or math.isnan(value):
        return -math.inf
    return -value if name.endswith(("loss", "error")) else value
