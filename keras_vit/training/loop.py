"""The training loop: runs the engine, logs metrics, saves checkpoints, evaluates, and handles stop
signals."""

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from keras_vit import data, terminal
from keras_vit.training import preemption
from keras_vit.training.bad_examples import count_bad, gather_bad
from keras_vit.training.checkpoint_manager import CheckpointManager
from keras_vit.training.counters import Counters, note_best
from keras_vit.training.diagnosis import Diverged
from keras_vit.training.engine import Engine
from keras_vit.training.metrics import MetricWriter
from keras_vit.training.progress import Progress

log = logging.getLogger(__name__)

_CALL_SECONDS = 10  # longest call of `Engine.train`, because a run can only stop between calls


@dataclasses.dataclass
class Loop:
    """Trains and evaluates the model of a built engine, from `counters.step` to `total_steps`."""

    config: ConfigDict
    engine: Engine
    inputs: data.InputPipeline
    evaluators: Mapping[str, Any]
    checkpoints: CheckpointManager
    counters: Counters
    metric_writer: MetricWriter
    progress: Progress
    total_steps: int
    profile_folder: Any  # of the TensorBoard trace if `config.profile`
    write: Callable[[str], object]

    def __post_init__(self):
        self._is_single_host = self.engine.num_hosts == 1
        warn = self.write if self.engine.host_index == 0 else log.warning
        self._bad_examples = self.inputs.bad_examples("train", warn)
        # Do not repeat a line in later evaluations.
        self._warn_of_test = functools.cache(lambda line: warn(f"test: {line}"))

    def train(self):
        """Trains, and evaluates when due; may raise `Preempted` or `Diverged`."""
        config = self.config
        counters = self.counters
        # Trace only the third call.
        profile_folders = iter([None, None, self.profile_folder if config.profile else None])
        most_steps = 1  # until a call is measured
        bar = terminal.progress_bar("training", self.total_steps, "steps", counters.step, delay=0)
        with preemption.catch_stop_signals() as request, bar as update_bar:
            # Evaluate first if the run was interrupted between a checkpoint and its evaluation.
            self._evaluate_if_due(request)
            self.progress.begin()
            clock = time.monotonic()
            while counters.step < self.total_steps and not self._stops_early():
                # Train for up to `steps_per_call` steps or `_CALL_SECONDS`, but not past the next
                # log line, checkpoint or evaluation.
                first = counters.step
                steps = min(_next_stop(config, first, self.total_steps) - first, most_steps)
                folder = next(profile_folders, None)
                outputs = self.engine.train(
                    first, steps, stop_requested=bool(request.signal), profile_folder=folder
                )
                counters.step += len(outputs.metrics["loss"])
                if config.steps_per_call > 1:
                    most_steps = _steps_in_time(self.engine, time.monotonic() - clock, steps)
                if folder:
                    self.write(f"wrote a profiler trace: tensorboard --logdir {folder}")
                update_bar(counters.step)
                self._log(first, outputs)
                stopping = outputs.stop_requested or (self._is_single_host and bool(request.signal))
                counters.train_seconds += time.monotonic() - clock
                self._save_if_due(stopping)
                if stopping:
                    self._stop(request)
                self._evaluate_if_due(request)
                clock = time.monotonic()
            if self._is_single_host and request.signal:  # the signal arrived during the last save
                self._stop(request)
            if any(profile_folders):
                self.write("warning: no profile was written, because training ended too early")

    def evaluate_at_end(self):
        """Evaluates the trained model, or the best one if the run exports it. Its weights become
        the EMA if there is one. Returns `RunResult.metrics`."""
        counters = self.counters
        with preemption.raise_on_stop_signals("the final evaluation"):
            self.engine.swap_ema()
            metrics = self._evaluate()
            self._record(metrics)
            step = counters.step
            if exports_best(self.config) and counters.best_step != step:
                step = counters.best_step
                name = counters.best_metric
                if math.isnan(counters.best_value):
                    name = f"loss, because {name} is NaN"
                self.write(f"using the best checkpoint by {name}, of step {step}")
                self.checkpoints.load(step)
                self.engine.swap_ema()
                metrics = self._evaluate()
        seconds = counters.train_seconds
        images = counters.step * self.config.batch_size
        return {
            **{f"test/{name}": value for name, value in metrics.items()},
            "train/model_step": step,
            "train/bad_examples": counters.all_bad_examples,
            "train/skipped_steps": counters.skipped_steps,
            "train/seconds": seconds,
            "train/images_per_second": images / seconds if seconds else 0.0,
        }

    def _stops_early(self):
        """Returns whether training ends because `best_metric` has not improved for long enough."""
        counters = self.counters
        config = self.config
        patience = config.early_stop_evals * config.eval_every_steps
        waited = counters.evaluated_step - counters.best_step
        if not 0 < patience <= waited or counters.best_metric != config.best_metric:
            return False
        if math.isnan(counters.best_value):  # a metric without a value shows no end
            return False
        self.write(
            f"stopped early: {counters.best_metric} has been at most as good as at step "
            f"{counters.best_step}, {counters.best_value:.4g}, in {config.early_stop_evals} "
            "evaluations in a row"
        )
        return True

    def _log(self, first, outputs):
        """Writes the metrics of the steps from `first`, and then raises `Diverged` if training
        cannot continue."""
        counters = self.counters
        count = counters.step - first
        self.progress.report_first(count)
        bad_counts = count_bad(self.engine, counters, self._bad_examples, first, count)
        self.metric_writer.write_steps(counters.step, outputs, bad_counts)
        if not outputs.can_continue:
            raise Diverged(
                _nonfinite_message(self.engine, self.checkpoints, counters.step, outputs.metrics)
            )
        skipped = int((~np.isfinite(list(outputs.metrics.values())).all(0)).sum())
        if skipped:
            counters.skipped_steps += skipped
            self.write(
                f"skipped {skipped} non-finite steps of the last {count} ({counters.skipped_steps} "
                "in total)"
            )

    def _save_if_due(self, stopping):
        step = self.counters.step
        stopping = stopping or step == self.total_steps
        # An evaluation may fail, so save before it.
        every = (self.config.checkpoint_every_steps, self.config.eval_every_steps)
        if stopping or any(_due(step, number) for number in every):
            # Flush first, so that `metrics.csv` has all steps before the checkpoint.
            self.metric_writer.flush()
            self.checkpoints.save(step, dataclasses.asdict(self.counters))

    def _stop(self, request):
        raise preemption.Preempted(
            f"stopped by {request.signal or 'another host'} after step {self.counters.step} and "
            "saved; run the same command to resume"
        )

    def _evaluate_if_due(self, request):
        step = self.counters.step
        is_new = self.counters.evaluated_step < step < self.total_steps
        if not (is_new and _due(step, self.config.eval_every_steps)):
            return
        start = time.monotonic()
        with self.engine.ema_scope():
            metrics = self._evaluate()
        self.progress.exclude(time.monotonic() - start)
        self.counters.evaluated_step = step
        self._record(metrics)
        # With several hosts, `engine.train` coordinates the stop.
        if request.signal and self._is_single_host:
            self._stop(request)

    def _record(self, metrics):
        """Writes the metrics of an evaluation, and updates the counters in the checkpoint of this
        step."""
        step = self.counters.step
        self.metric_writer.write_evaluation(step, metrics)
        note_best(self.counters, self.config.best_metric, metrics)
        # All hosts must load the same checkpoint and stop at the same step.
        (self.counters.best_step,), *_ = self.engine.gather_hosts([self.counters.best_step])
        self.checkpoints.update(step, dataclasses.asdict(self.counters))

    def _evaluate(self):
        """Returns the metrics of the current model. Every host must call it."""
        try:
            metrics = self.engine.evaluate()
        except ValueError:
            # This raises a clearer error if unreadable examples are the cause.
            self._count_bad_test_examples()
            raise
        metrics["bad_examples"] = self._count_bad_test_examples()
        model = self.engine.gather_model() if self.config.evals else None
        for name in self.config.evals:
            values = self._apply(name, model)
            metrics |= {f"{name}/{metric}": value for metric, value in values.items()}
        return metrics

    def _count_bad_test_examples(self):
        """Returns the number of unreadable test examples; raises a `ValueError` if there are too
        many."""
        bad_examples = self.inputs.bad_examples("test", self._warn_of_test)
        steps = range(-(-self.inputs.test.num_examples // self.inputs.batch_size))
        count = sum(gather_bad(self.engine, bad_examples, steps))
        bad_examples.check(0, count)
        return count

    def _apply(self, name, model):
        """Returns the metrics of an evaluator as floats; they are NaN if it fails, so that the run
        goes on."""
        evaluator = self.evaluators[name]
        try:
            metrics = evaluator.evaluate(model, self.inputs, self.engine)
            values = {metric: float(value) for metric, value in metrics.items()}
            if not values.keys() >= set(evaluator.METRICS):
                raise ValueError(
                    f"The evaluator must return {', '.join(evaluator.METRICS)}. Received: "
                    f"{', '.join(values)}"
                )
            return values
        except preemption.Preempted:
            raise
        except Exception as error:
            log.debug("the evaluator %s failed", name, exc_info=True)
            reason = f"{type(error).__name__}: {terminal.first_line(error)}"
            self.write(f"warning: the evaluator {name} failed, so its metrics are NaN: {reason}")
            return dict.fromkeys(evaluator.METRICS, math.nan)


def exports_best(config):
    """Returns whether the best checkpoint is the result of a run, and not the last one."""
    return config.eval_every_steps > 0 and config.export_model == "best"


def _next_stop(config, step, total_steps):
    """Returns the last step at which the next `engine.train` call may end."""
    every = (
        config.steps_per_call,
        config.log_every_steps,
        config.eval_every_steps,
        config.checkpoint_every_steps,
    )
    stops = [step - step % number + number for number in every if number]
    if step < config.unfreeze_at_step:
        stops.append(config.unfreeze_at_step)
    return min(total_steps, *stops)


def _steps_in_time(engine, seconds, steps):
    """Returns how many steps fit in `_CALL_SECONDS` on the slowest host, if `steps` steps took
    `seconds`."""
    (milliseconds,) = max(engine.gather_hosts([1 + int(1000 * seconds)]))
    # With several hosts, a signal stops the run after the call that follows.
    calls = min(engine.num_hosts, 2)
    return max(1, int(1000 * _CALL_SECONDS * steps / (milliseconds * calls)))


def _nonfinite_message(engine, checkpoints, step, metrics):
    # The last update was not applied, so the model still has the weights that the failing step
    # used.
    layer = engine.diagnose(step - 1)
    kept = "no checkpoint was saved yet"
    if saved := checkpoints.steps():
        kept = f"the last good checkpoint is {checkpoints.path(saved[-1])}"
    return (
        f"The loss, a metric or a gradient is not finite at step {step}: {layer}; {kept}. Try a "
        "lower learning rate (--config.schedule.base), --config.clip_norm=1 or another "
        "--config.precision. "
        f"Received: {', '.join(f'{name}={values[-1].item()}' for name, values in metrics.items())}"
    )


def _due(step, every):
    return every > 0 and step % every == 0
