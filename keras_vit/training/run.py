"""A whole training run, from a config to a trained and evaluated model."""

import keras
import tensorflow as tf

from keras_vit import data, optimizers
from keras_vit.models import VisionTransformer
from keras_vit.training.progress import Progress
from keras_vit.training.step import make_eval_step, make_train_steps
from keras_vit.training.strategy import choose_strategy

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def run(config, workdir, write=print):
    """Trains a model as a config says and evaluates it; goes on where an interrupted run of the workdir stopped.

    Args:
        config: a recipe, as in `experiments/configs/digits.py`.
        workdir: the run's `Workdir`.
        write: takes the lines that tell how it goes.

    Returns:
        `(model, result)`: the trained `keras.Model` and a dict with `test/accuracy`, `test/loss`, `train/bad_examples`,
        `train/seconds` and `train/images_per_second`.

    Raises:
        ValueError: the config asks for what cannot be.
    """
    if config.precision not in PRECISIONS:
        raise ValueError(
            f"`precision` must be one of {', '.join(PRECISIONS)}. Received: precision={config.precision!r}"
        )
    strategy = choose_strategy(config.strategy)
    if config.batch_size % strategy.num_replicas_in_sync:
        raise ValueError(
            f"The batch must divide among {strategy.num_replicas_in_sync} replicas. "
            f"Received: batch_size={config.batch_size}"
        )
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision)
    made = data.from_config(config.data, batch_size=config.batch_size, seed=config.seed)
    train, test = made.train, made.test
    total_steps = _total_steps(config, train.num_examples)
    with strategy.scope():
        middle = [train.max_value / 2] * 3
        model = VisionTransformer(
            classes=len(train.class_names),
            preprocessing={"mean": middle, "std": middle, "resize": "stretch", "crop_fraction": 1.0},
            **config.model,
        )
        schedule = optimizers.Schedule(total_steps=total_steps, **config.schedule)
        optimizer = optimizers.make(schedule=schedule, **config.optimizer)
        if config.precision == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
        state = tf.train.Checkpoint(
            model=model,
            optimizer=optimizer,
            step=tf.Variable(0, dtype=tf.int64),
            seconds=tf.Variable(0.0, dtype=tf.float64),
        )
    replicas = strategy.num_replicas_in_sync
    kind = type(strategy).__name__.lstrip("_")
    write(
        f"{kind}: {replicas} x {config.batch_size // replicas} images a step, {config.precision}, "
        f"{model.count_params():,} parameters, {total_steps} steps on {train.num_examples:,} images"
    )
    bad = _train(config, workdir, write, strategy, made, state, total_steps)
    loss, accuracy = _evaluate(strategy, model, made)
    write(f"test: loss {loss:.4f}, accuracy {100 * accuracy:.2f} % of {test.num_examples} images")
    seconds = float(state.seconds.numpy())
    return model, {
        "test/accuracy": accuracy,
        "test/loss": loss,
        "train/bad_examples": bad,
        "train/seconds": seconds,
        "train/images_per_second": total_steps * config.batch_size / seconds,
    }


def _total_steps(config, num_examples):
    """From `total_steps` or `total_epochs`, of which one must be 0."""
    if (config.total_steps > 0) == (config.total_epochs > 0):
        raise ValueError(
            "One of `total_steps` and `total_epochs` must be more than 0, the other 0. "
            f"Received: total_steps={config.total_steps}, total_epochs={config.total_epochs}"
        )
    return config.total_steps or max(1, round(config.total_epochs * num_examples / config.batch_size))


def _train(config, workdir, write, strategy, made, state, total_steps):
    """Trains to the last step; returns how many different examples could not be read."""
    manager = tf.train.CheckpointManager(state, str(workdir.checkpoints), max_to_keep=2, step_counter=state.step)
    if manager.restore_or_initialize():
        write(f"going on from step {state.step.numpy()}, {manager.latest_checkpoint}")
    step = int(state.step.numpy())
    iterator = iter(strategy.experimental_distribute_dataset(made.train_batches(start_step=step)))
    train_steps = make_train_steps(strategy, state.model, state.optimizer, config.batch_size)
    progress = Progress(total_steps, config.batch_size, write=write)
    bad = made.bad_examples("train", warn=write)
    while step < total_steps:
        # To the next line, at the same steps whether or not the run was interrupted.
        until = min(step - step % config.log_every_steps + config.log_every_steps, total_steps)
        metrics, weights = train_steps(iterator, tf.constant(until - step))
        loss, accuracy = metrics.numpy()
        for number, row in enumerate(weights.numpy(), start=step):
            bad.update(number, row)
        state.seconds.assign_add(progress.report(until, until - step, loss, accuracy))
        step = until
        state.step.assign(step)
        manager.save(checkpoint_number=step)
    return bad.count


def _evaluate(strategy, model, made):
    eval_step = make_eval_step(strategy, model)
    batches = strategy.experimental_distribute_dataset(made.eval_batches())
    loss, correct, weight = sum(eval_step(*batch).numpy() for batch in batches).tolist()
    return loss / weight, correct / weight
