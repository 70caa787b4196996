"""Trains a tiny model on a few images, on logical CPU devices. Tests import this module."""

import functools

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from keras_vit import VisionTransformer, data, optimizers, recipes, tasks
from keras_vit.data.pipeline import InputPipeline
from keras_vit.training.tensorflow.batches import distributed_batches
from keras_vit.training.tensorflow.state import State
from keras_vit.training.tensorflow.step import make_train_steps

from ..shared import SIZES, randomize_head

BATCH = 8
CLASSES = 3
MODEL = {**SIZES, "input_shape": (4, 6, 3), "patch_size": 2}


@functools.cache
def strategy_of(replicas):
    """Returns the default strategy, or a mirrored strategy over several logical devices."""
    if replicas == 1:
        return tf.distribute.get_strategy()
    # Avoid collective operations. TensorFlow supports them for only one number of replicas per
    # process.
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)], tf.distribute.ReductionToOneDevice()
    )


def source_of(number, seed=0):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (number, 4, 6, 3)).astype(np.uint8)
    return data.arrays(images, np.arange(number) % CLASSES, [f"class {i}" for i in range(CLASSES)])


def input_of(train=23, test=11, **options):
    return InputPipeline(
        source_of(train), source_of(test, seed=1), options, BATCH, seed=0, max_bad_share=0.0
    )


def new_state(
    replicas=1, optimizer="sgd", rate=0.1, averaged=False, scaled=False, policy="float32", **model
):
    """Returns a `State`. Its initial weights do not depend on the number of replicas."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    with strategy_of(replicas).scope():
        model = randomize_head(VisionTransformer(classes=CLASSES, **{**MODEL, **model}))
        optimizer = optimizers.get(optimizer, rate)
        optimizer.build(model.trainable_variables)
        return State(model, optimizer, averaged=averaged, scaled=scaled)


def classification(**changes):
    return tasks.get(ConfigDict(recipes.defaults(**changes)))


def train(
    replicas=1, steps=5, steps_per_call=None, state=None, inputs=None, options=(), **state_options
):
    """Trains from step 0. Returns the `State`, the metrics of shape `(steps, 4)` and the outputs of
    the last call. `options` are fields of the config, `state_options` arguments of `new_state`."""
    strategy = strategy_of(replicas)
    state = state or new_state(replicas, averaged="ema_decay" in dict(options), **state_options)
    config = ConfigDict(recipes.defaults(batch_size=BATCH, **dict(options)))
    train_steps = make_train_steps(strategy, state, tasks.get(config), config)
    inputs = inputs or input_of()
    iterator = iter(distributed_batches(strategy, inputs, inputs.train_batches))
    metrics = []
    for first in range(0, steps, steps_per_call or steps):
        number = min(steps_per_call or steps, steps - first)
        outputs = train_steps(iterator, tf.constant(first), tf.constant(number), tf.constant(0.0))
        metrics.append(outputs["metrics"].numpy())
    return state, np.concatenate(metrics), outputs


def weights_of(state):
    return {variable.path: variable.numpy() for variable in state.model.trainable_variables}


def expected_evaluation(model, source):
    """Returns the loss and the accuracy of a model on all examples of a source."""
    images = np.stack([source.read(i)["image"] for i in range(source.num_examples)])
    logits = np.asarray(model(images.astype("float32") / 127.5 - 1), "float64")
    labels = np.asarray(source.labels)
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(labels)), labels]
    return losses.mean(), (logits.argmax(-1) == labels).mean()
