"""The loop over the steps of a run: calls, saves, evaluations, and every way in which it can end."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable

import numpy as np

from keras_vit import data
from keras_vit.training import preemption
from keras_vit.training.checkpoint_manager import CheckpointManager
from keras_vit.training.engine import Engine
from keras_vit.training.metric_writer import MetricWriter
from keras_vit.training.progress import Progress
from keras_vit.training.workdir import Workdir

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Counters:
    """The numbers that a run keeps from step to step; they are in its checkpoints.

    Attributes:
        step: steps that are done, which is also the position in the data.
        skipped_steps: steps that were not finite and changed nothing.
        train_seconds: seconds of training so far, evaluations not counted.
        best_step, best_value, best_metric: of the best evaluation so far, and of which metric; -1, None and "" before
            the first.
        data: the `fingerprint` of the run's data.
        bad_examples: the `counts` of the training's `data.BadExamples`, of the chief.
        all_bad_examples: how often an example could not be read, on all hosts.
    """

    step: int = 0
    skipped_steps: int = 0
    train_seconds: float = 0.0
    best_step: int = -1
    best_value: float | None = None
    best_metric: str = ""
    data: tuple = ()
    bad_examples: tuple = (0, 0, 0, 0)
    all_bad_examples: int = 0


@dataclasses.dataclass(frozen=True)
class Loop:
    """What the loop works with.

    Attributes:
        config: the recipe.
        workdir: the `Workdir`.
        engine: the `Engine`, built.
        inputs: the `data.InputPipeline`.
        evaluate: gives the metrics of the model as it is, a dict of floats.
        checkpoints: the `CheckpointManager`.
        metric_writer: the `MetricWriter`.
        progress: the `Progress`.
        counters: the `Counters`.
        total_steps: of the whole run.
        write: takes lines of text.
    """

    config: object
    workdir: Workdir
    engine: Engine
    inputs: data.InputPipeline
    evaluate: Callable
    checkpoints: CheckpointManager
    metric_writer: MetricWriter
    progress: Progress
    counters: Counters
    total_steps: int
    write: Callable

    def run(self):
        """Trains from where the counters are to the last step.

        Returns:
            How often an example could not be read, at most once an epoch each, on all hosts.

        Raises:
            Preempted: SIGTERM, SIGHUP or Ctrl-C came, and everything is saved.
            ValueError: training cannot go on; the last checkpoint is as it was.
        """
        config, engine, counters = self.config, self.engine, self.counters
        host = {"num_hosts": engine.num_hosts, "host_index": engine.host_index}
        # The chief writes lines, and the other hosts to their logs.
        warn = self.write if engine.host_index == 0 else log.warning
        bad_examples = self.inputs.bad_examples("train", **host, warn=warn, counts=counters.bad_examples)
        profile_folders = iter([None, self.workdir.tensorboard if config.profile else None])  # the second call's
        clock = time.monotonic()
        with preemption.catch_stop_signals() as request:
            while counters.step < self.total_steps:
                first = counters.step
                profile_folder = next(profile_folders, None)
                outputs = engine.train(
                    first,
                    self._next_stop() - first,
                    stop_requested=request.received,
                    profile_folder=profile_folder,
                )
                if profile_folder:
                    self.write(f"wrote a trace of some steps: tensorboard --logdir {profile_folder}")
                counters.step += len(outputs.metrics["loss"])
                bad_counts = self._count_bad(bad_examples, first, outputs.example_weights)
                self.metric_writer.write_steps(counters.step, outputs, bad_counts)
                self._count_nonfinite(outputs)
                stop = outputs.stop_requested or (engine.num_hosts == 1 and request.received)
                counters.train_seconds += time.monotonic() - clock
                if _due(counters.step, config.eval_every_steps) and counters.step < self.total_steps:
                    self._evaluate()
                clock = time.monotonic()
                if self._save_is_due(stop):
                    self.metric_writer.flush()
                    self.checkpoints.save(counters.step, dataclasses.asdict(counters))
                if stop and counters.step < self.total_steps:
                    raise preemption.Preempted(
                        f"stopped by {request.signal or 'another host'} after step {counters.step} and saved; the same "
                        "command goes on from there"
                    )
        return counters.all_bad_examples

    def _count_bad(self, bad_examples, first, example_weights):
        """How many examples of each step from number `first` on could not be read, on all hosts."""
        counts, error = [0] * len(example_weights), None
        try:
            for i, weights in enumerate(example_weights):
                counts[i] = bad_examples.update(first + i, weights)
        except ValueError as reason:
            error = reason
        hosts = self.engine.gather_hosts([int(error is not None), *counts])
        if error:
            raise error
        if any(failed for failed, *_ in hosts):
            raise ValueError(
                "Another host cannot read more than `max_bad_share` of the examples; its log names them. "
                f"Received: the failures of each host {[sum(row[1:]) for row in hosts]}"
            )
        totals = [sum(step) for step in zip(*(row[1:] for row in hosts))]
        self.counters.bad_examples = bad_examples.counts
        self.counters.all_bad_examples += sum(totals)
        return totals

    def _next_stop(self):
        """Where the next call ends: at the same steps whether or not the run was interrupted."""
        config, step = self.config, self.counters.step
        every = (
            config.steps_per_call,
            config.log_every_steps,
            config.eval_every_steps,
            config.checkpoint_every_steps,
        )
        return min([self.total_steps, *(step - step % n + n for n in every if n)])

    def _save_is_due(self, stop):
        step = self.counters.step
        return (
            stop
            or step in (self.total_steps, self.counters.best_step)
            or _due(step, self.config.checkpoint_every_steps)
        )

    def _evaluate(self):
        start = time.monotonic()
        with self.engine.ema_scope():
            metrics = self.evaluate()
        self.progress.exclude(time.monotonic() - start)
        self.metric_writer.write_evaluation(self.counters.step, metrics)
        name = self.config.best_metric
        if self.counters.best_metric != name:  # the config was changed: values of two metrics cannot be compared
            self.counters.best_metric, self.counters.best_value = name, None
        if is_better(name, metrics[name], self.counters.best_value):
            self.counters.best_value, self.counters.best_step = metrics[name], self.counters.step

    def _count_nonfinite(self, outputs):
        counters, steps = self.counters, len(outputs.metrics["loss"])
        if not outputs.can_go_on:
            last = {name: values[-1].item() for name, values in outputs.metrics.items()}
            raise ValueError(self._nonfinite_message(last))
        nonfinite = int((~np.isfinite(list(outputs.metrics.values())).all(0)).sum())
        if nonfinite:
            counters.skipped_steps += nonfinite
            self.write(f"{nonfinite} of {steps} steps were skipped, {counters.skipped_steps} so far: not finite")

    def _nonfinite_message(self, metrics):
        """The message for the last step, which was not finite. Its update was not applied: the weights are those it
        started with."""
        layer = self.engine.diagnose(self.counters.step - 1)
        last = self.checkpoints.newest_path()
        kept = "there is no checkpoint yet" if last is None else f"the last good checkpoint is {last}"
        received = ", ".join(f"{name}={value}" for name, value in metrics.items())
        return (
            f"Loss or gradients are not finite at step {self.counters.step}: {layer}; {kept}. A lower `schedule.base`, "
            "`clip_norm=1`, or another `precision` may help, and `skip_nonfinite` skips such steps. "
            f"Received: {received}"
        )


def is_better(name, value, best):
    """Whether a metric is better than the best so far, None before the first: lower where its name ends in "loss" or
    "error", else higher."""
    if best is None or math.isnan(best):
        return not math.isnan(value) or best is None
    return value < best if name.endswith(("loss", "error")) else value > best


def _due(step, every):
    return every > 0 and step % every == 0
