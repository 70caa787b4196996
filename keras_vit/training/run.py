"""A whole training run, from a config to a trained and evaluated model."""

import keras

from keras_vit import checkpoints as weights
from keras_vit import data, losses, optimizers
from keras_vit.models import VisionTransformer
from keras_vit.training import batches, diagnosis, settings
from keras_vit.training.checkpoints import Checkpoints
from keras_vit.training.introduction import introduction
from keras_vit.training.journal import Journal, Silence
from keras_vit.training.loop import Job, train
from keras_vit.training.scoring import make_evaluate
from keras_vit.training.state import State
from keras_vit.training.strategy import choose_strategy, hosts


def run(config, workdir, write=print, strategy=None):
    """Trains a model as a config says and evaluates it; goes on where an interrupted run of the workdir stopped.

    Args:
        config: a recipe, as in `experiments/configs/digits.py`; `keras_vit/recipes/defaults.py` has its fields.
        workdir: the run's `Workdir`.
        write: takes the lines that tell how it goes.
        strategy: a `tf.distribute.Strategy` instead of the one that the config asks for.

    Returns:
        `(model, result)`: the trained `keras.Model`, with the averages of its weights if there are any, and a dict with
        `test/accuracy`, `test/loss`, `train/bad_examples`, `train/skipped_steps`, `train/seconds`,
        `train/images_per_second`.

    Raises:
        ValueError: the config asks for what cannot be, or training cannot go on.
        Interrupted: SIGTERM came; the run is saved, and the same call goes on.
    """
    strategy = strategy or choose_strategy(config.strategy, config.tpu_address)
    settings.check(config, strategy)
    chief = hosts(strategy)[1] == 0
    if not chief:
        write = _nothing
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision)
    made = data.from_config(config.data, batch_size=config.batch_size, seed=config.seed)
    total_steps = settings.total_steps(config, made.train.num_examples)
    with strategy.scope():
        state = _new_state(config, made, total_steps)
    job = Job(config, workdir, strategy, made, state, losses.get(config.loss), total_steps, write)
    sizes = {"num_examples": made.train.num_examples, "parameters": state.model.count_params()}
    for line in introduction(config, strategy=strategy, total_steps=total_steps, **sizes):
        write(line)
    checkpoints = Checkpoints(workdir.checkpoints, state, write, chief)
    step = checkpoints.restore()
    if not step:
        _begin(job)
    evaluate = make_evaluate(strategy, state.model, job.loss, made)
    journal = Silence()
    if chief:
        journal = Journal(
            workdir,
            step,
            total_steps=total_steps,
            batch_size=config.batch_size,
            devices=strategy.num_replicas_in_sync,
            log_every_steps=config.log_every_steps,
            test_examples=made.test.num_examples,
            write=write,
        )
    try:
        bad = train(job, checkpoints, journal, evaluate)
        state.average_the_model()
        loss, accuracy = evaluate()
        journal.evaluated(total_steps, loss, accuracy)
    finally:
        journal.close()
    seconds = float(state.seconds.numpy())
    return state.model, {
        "test/accuracy": accuracy,
        "test/loss": loss,
        "train/bad_examples": bad,
        "train/skipped_steps": int(state.skipped.numpy()),
        "train/seconds": seconds,
        "train/images_per_second": total_steps * config.batch_size / seconds if seconds else 0.0,
    }


def _new_state(config, made, total_steps):
    model = VisionTransformer(
        classes=len(made.train.class_names),
        preprocessing=made.model_preprocessing(),
        remat=config.remat,
        **config.model,
    )
    schedule = optimizers.Schedule(total_steps=total_steps, **config.schedule)
    optimizer = optimizers.get(schedule=schedule, **config.optimizer)
    optimizer.build(model.trainable_variables)
    return State(model, optimizer, averaged=config.ema_decay > 0, scaled=config.precision == "mixed_float16")


def _begin(job):
    """What only a run from the start does: starting weights, and a look at the first batch."""
    if job.config.weights:
        with job.strategy.scope():
            channels = job.config.weights_channels or None
            job.write(str(weights.load(job.state.model, job.config.weights, head="new", channels=channels)))
        job.state.weights_changed()
    first = batches.one_batch(job.strategy, job.made, 0)
    for line in diagnosis.warnings_about(*first, job.state.model):
        job.write(f"warning: {line}")


def _nothing(line):
    """Of several workers only the first one tells."""
