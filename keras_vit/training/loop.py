"""The loop over the steps of a run: calls, saves, evaluations, and every way in which it can end."""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable

import numpy as np

from keras_vit import data, terminal
from keras_vit.training import preemption
from keras_vit.training.checkpoint_manager import CheckpointManager
from keras_vit.training.diagnosis import Diverged
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
        evaluated_step: the step of the last evaluation.
        skipped_steps: steps that were not finite and changed nothing.
        train_seconds: seconds of training so far, evaluations not counted.
        best_step, best_value, best_metric, best_loss: step, value and name of the metric of the best evaluation so far,
            and its loss, which breaks ties; -1, None, "" and None before the first.
        data: the `fingerprint` of the run's data.
        bad_examples: the `counts` of the training's `data.BadExamples`, of all hosts together.
        all_bad_examples: how often an example could not be read, on all hosts.
    """

    step: int = 0
    evaluated_step: int = 0
    skipped_steps: int = 0
    train_seconds: float = 0.0
    best_step: int = -1
    best_value: float | None = None
    best_metric: str = ""
    best_loss: float | None = None
    data: tuple = ()
    bad_examples: tuple = (0, 0, 0, 0)
    all_bad_examples: int = 0

    @classmethod
    def of(cls, values):
        """The counters of a checkpoint, a dict as it is read from JSON.

        Raises:
            ValueError: there are others, or values of other types.
        """
        # A checkpoint of before there was this counter was saved after its evaluation.
        values = {"evaluated_step": values.get("step", 0), **values}
        types = {field.name: field.type for field in dataclasses.fields(cls)}
        wrong = [name for name, value in values.items() if not _is_of(value, types.get(name))]
        if wrong:
            raise ValueError(
                "The counters of the checkpoint, in its file `finished`, are damaged or of another version. "
                f"Received: {', '.join(f'{name}={str(values[name])[:50]}' for name in wrong)}"
            )
        return cls(**{name: tuple(value) if types[name] is tuple else value for name, value in values.items()})


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
        before = {"counts": counters.bad_examples} if engine.host_index == 0 else {}  # of all hosts, counted once
        bad_examples = self.inputs.bad_examples("train", **host, warn=warn, **before)
        profile_folders = iter([None, self.workdir.tensorboard if config.profile else None])  # the second call's
        with preemption.catch_stop_signals() as request, self._bar() as update_bar:
            self._evaluate_if_due(request)  # what came between a checkpoint and the end of its evaluation
            self.progress.begin()
            clock = time.monotonic()
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
                self.progress.report_first(counters.step - first)
                update_bar(counters.step)
                bad_counts = self._count_bad(bad_examples, first, outputs.example_weights)
                self.metric_writer.write_steps(counters.step, outputs, bad_counts)
                self._count_nonfinite(outputs)
                stop = outputs.stop_requested or (engine.num_hosts == 1 and request.received)
                counters.train_seconds += time.monotonic() - clock
                if self._save_is_due(stop):
                    self.metric_writer.flush()
                    self.checkpoints.save(counters.step, dataclasses.asdict(counters))
                if stop and counters.step < self.total_steps:
                    self._stop(request)
                self._evaluate_if_due(request)
                clock = time.monotonic()
        return counters.all_bad_examples

    def _bar(self):
        if self.engine.host_index:
            return contextlib.nullcontext(lambda done: None)
        return terminal.progress_bar("training", self.total_steps, "steps", self.counters.step, delay=0)

    def _count_bad(self, bad_examples, first, example_weights):
        """How many examples of each step from number `first` on could not be read, on all hosts."""
        counts, error = [0] * len(example_weights), None
        try:
            for i, weights in enumerate(example_weights):
                counts[i] = bad_examples.update(first + i, weights)
        except ValueError as reason:
            error = reason
        hosts = self.engine.gather_hosts([int(error is not None), *bad_examples.counts, *counts])
        if error:
            raise error
        if any(failed for failed, *_ in hosts):
            raise ValueError(
                "Another host cannot read more than `max_bad_share` of the examples; its log names them. "
                f"Received: the failures of each host {[row[1] for row in hosts]}"
            )
        self.counters.bad_examples = data.sum_counts([row[1:5] for row in hosts])
        bad_examples.check_share(self.counters.bad_examples[-1])
        totals = [sum(step) for step in zip(*(row[5:] for row in hosts))]
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
        """Also before an evaluation, which takes long and may fail."""
        step, config = self.counters.step, self.config
        every = (config.checkpoint_every_steps, config.eval_every_steps)
        return stop or step == self.total_steps or any(_due(step, number) for number in every)

    def _stop(self, request):
        raise preemption.Preempted(
            f"stopped by {request.signal or 'another host'} after step {self.counters.step} and saved; the same "
            "command goes on from there"
        )

    def _evaluate_if_due(self, request):
        """Evaluates the model of a step that is saved, unless that was done before."""
        counters = self.counters
        step = counters.step
        if not _due(step, self.config.eval_every_steps) or not counters.evaluated_step < step < self.total_steps:
            return
        start = time.monotonic()
        with self.engine.ema_scope():
            metrics = self.evaluate()
        self.progress.exclude(time.monotonic() - start)
        self.metric_writer.write_evaluation(step, metrics)
        note_best(counters, self.config.best_metric, metrics)
        counters.evaluated_step = step
        self.metric_writer.flush()
        self.checkpoints.update(step, dataclasses.asdict(counters))
        if request.received and self.engine.num_hosts == 1:  # several hosts agree on that in a call of training
            self._stop(request)

    def _count_nonfinite(self, outputs):
        counters, steps = self.counters, len(outputs.metrics["loss"])
        if not outputs.can_go_on:
            last = {name: values[-1].item() for name, values in outputs.metrics.items()}
            raise Diverged(self._nonfinite_message(last))
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
            f"Loss or gradients are not finite at step {self.counters.step}: {layer}; {kept}. A lower learning rate "
            "(--config.schedule.base), --config.clip_norm=1, or another --config.precision may help. "
            f"Received: {received}"
        )


def note_best(counters, name, metrics):
    """Makes the evaluation of `counters.step` the best one if its metric `name` is; the lower loss wins a tie."""
    if counters.best_metric != name:  # --change: values of two metrics cannot be compared
        counters.best_metric, counters.best_value = name, None
    value, loss = metrics[name], metrics["loss"]
    tie = value == counters.best_value and is_better("loss", loss, counters.best_loss)
    if tie or is_better(name, value, counters.best_value):
        counters.best_value, counters.best_loss, counters.best_step = value, loss, counters.step


def is_better(name, value, best):
    """Whether a metric is better than the best so far, None before the first: lower where its name ends in "loss" or
    "error", else higher."""
    if best is None or math.isnan(best):
        return not math.isnan(value) or best is None
    return value < best if name.endswith(("loss", "error")) else value > best


def _due(step, every):
    return every > 0 and step % every == 0


def _is_of(value, kind):
    """Whether a value that was read from JSON is of the type of a counter, None for one that there is not."""
    if kind is tuple:
        return isinstance(value, list | tuple) and all(type(number) is int for number in value)
    if kind in (float, float | None):
        return type(value) in (int, float) or (value is None and kind is not float)
    return kind is not None and type(value) is kind
