"""The loop over the steps of a run: calls, saves, evaluations, and every way in which it can end."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit import data
from keras_vit.training import batches, diagnosis, interruption
from keras_vit.training.state import State
from keras_vit.training.step import METRICS, make_train_steps
from keras_vit.training.strategy import hosts
from keras_vit.training.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Job:
    """What a run works with.

    Attributes:
        config: the recipe.
        workdir: its folder.
        strategy: the devices.
        made: the input.
        state: model, optimizer, averages and counters.
        loss: from labels and logits to losses `(B,)`.
        total_steps: when it is done.
        write: takes lines of text.
    """

    config: object
    workdir: Workdir
    strategy: tf.distribute.Strategy
    made: data.InputPipeline
    state: State
    loss: Callable
    total_steps: int
    write: Callable


def train(job, checkpoints, journal, evaluate):
    """Trains from where the state is to the last step.

    Args:
        job: the `Job`.
        checkpoints: the `Checkpoints` of the run.
        journal: the `Journal` of the run.
        evaluate: gives `(loss, accuracy)` of the model as it is.

    Returns:
        How many different examples could not be read.

    Raises:
        Interrupted: SIGTERM came, and all is saved.
        ValueError: training cannot go on; the last checkpoint is as it was.
    """
    config, state = job.config, job.state
    step = int(state.step.numpy())
    count, index = hosts(job.strategy)
    bad = job.made.bad_examples("train", num_hosts=count, host_index=index, warn=job.write)
    iterator = iter(batches.train_batches(job.strategy, job.made, step))
    train_steps = make_train_steps(
        job.strategy,
        state,
        job.loss,
        **{name: config[name] for name in ("batch_size", "seed", "accumulate_steps", "clip_norm")},
        **{name: config[name] for name in ("ema_decay", "skip_nonfinite", "xla")},
    )
    profiled = _profiler(job)
    with interruption.watching() as asked:
        while step < job.total_steps:
            first, until = step, _next_stop(step, job)
            leaving = tf.constant(float(asked.made))
            with _explained(), profiled():
                told = train_steps(iterator, tf.constant(step), tf.constant(until - step), leaving)
                rows = told["rows"].numpy()
            step += len(rows)
            for number, weights in enumerate(told["weights"].numpy(), start=first):
                bad.update(number, weights)
            state.step.assign(step)
            state.seconds.assign_add(journal.add(step, rows, float(told["waited"])))
            if not told["can_go_on"]:
                raise ValueError(_what_broke(job, checkpoints, step - 1, rows[-1]))
            broken = int((~np.isfinite(rows).all(-1)).sum())
            if broken:
                state.skipped.assign_add(broken)
                job.write(f"{broken} of {len(rows)} steps were left out, {state.skipped.numpy()} so far: not finite")
            leave = bool(told["leaving"]) or (count == 1 and asked.made)
            if _due(step, config.eval_every_steps) and step < job.total_steps:
                _evaluated(state, journal, evaluate, step)
            last, best = step == job.total_steps, state.best_step.numpy() == step
            if leave or last or best or _due(step, config.checkpoint_every_steps):
                checkpoints.save(step)
            if leave and step < job.total_steps:
                raise interruption.Interrupted(
                    f"stopped by SIGTERM after step {step} and saved; the same command goes on from there"
                )
    return bad.count


def _next_stop(step, job):
    """Where the next call ends: at the same steps whether or not the run was interrupted."""
    config = job.config
    every = (
        config.steps_per_call,
        config.log_every_steps,
        config.eval_every_steps,
        config.checkpoint_every_steps,
    )
    return min([job.total_steps, *(step - step % n + n for n in every if n)])


def _due(step, every):
    return every > 0 and step % every == 0


def _evaluated(state, journal, evaluate, step):
    start = time.monotonic()
    with state.averages_in_the_model():
        loss, accuracy = evaluate()
    journal.evaluated(step, loss, accuracy, time.monotonic() - start)
    if accuracy > state.best_accuracy.numpy():
        state.best_accuracy.assign(accuracy)
        state.best_step.assign(step)


def _what_broke(job, checkpoints, step, row):
    """The message for a step that was not finite. Its update was not applied: the weights are those it started with."""
    images, labels, _ = (part.numpy() for part in batches.one_batch(job.strategy, job.made, step))
    pieces = job.strategy.num_replicas_in_sync * job.config.accumulate_steps
    layer = diagnosis.first_broken_layer(job.state.model, job.loss, images, labels, pieces)
    last = max(checkpoints.steps(), default=None)
    kept = "there is no checkpoint yet" if last is None else f"the last good checkpoint is {checkpoints.path(last)}"
    told = ", ".join(f"{name}={value}" for name, value in zip(METRICS, row.tolist()))
    return (
        f"Loss or gradient are not finite at step {step + 1}: {layer}; {kept}. A lower `schedule.base`, "
        "`clip_norm=1`, or another `precision` may help, and `skip_nonfinite` leaves such steps out. "
        f"Received: {told}"
    )


@contextlib.contextmanager
def _explained():
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        reason = error.message.split("\n")[0][:200]
        raise ValueError(f"{diagnosis.OUT_OF_MEMORY} Received: {reason}") from error
    except tf.errors.NotFoundError as error:
        if "transfer manager" not in error.message:
            raise
        raise ValueError(
            "This TensorFlow has no XLA for its device: `xla` must be False. Received: xla=True"
        ) from error


def _profiler(job):
    """Gives a context for each call; the one of the second call writes TensorBoard's trace, if that is asked for."""
    numbers = itertools.count()

    @contextlib.contextmanager
    def call():
        if not job.config.profile or next(numbers) != 1:
            yield
            return
        tf.profiler.experimental.start(str(job.workdir.tensorboard))
        try:
            yield
        finally:
            tf.profiler.experimental.stop()
        job.write(f"wrote a trace of some steps: tensorboard --logdir {job.workdir.tensorboard}")

    return call
