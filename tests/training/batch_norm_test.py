"""Tests of BatchNorm in training: moving averages, replicas and micro-batches."""

import functools

import keras
import numpy as np
import pytest
from keras import ops
from ml_collections import ConfigDict

from keras_vit import LinearSegmenter, optimizers, recipes, tasks

from ..shared import SIZES

MODEL = {**SIZES, "input_shape": (4, 6, 3), "patch_size": 2, "classes": 3}
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="uses the engine of TensorFlow"
)


class MeanOfPatches(tasks.Task):
    """Classifies images by the mean logits of their patches."""

    def build_model(self, inputs):
        return new_model()

    def losses_and_metrics(self, model, batch, training=False):
        logits = ops.mean(model(batch[0], training=training), axis=(1, 2))
        return -ops.sum(batch[1] * ops.log_softmax(logits), axis=-1), {}


def new_model():
    keras.utils.set_random_seed(0)
    model = LinearSegmenter(**MODEL)
    kernel = model.head.classifier.kernel
    kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
    return model


@pytest.fixture(scope="module")
def train(tiny):
    """Returns `train(replicas, parts)`, which trains for a step. It returns the model and the
    metrics."""
    import tensorflow as tf

    from keras_vit.training.tensorflow.batches import distributed_batches
    from keras_vit.training.tensorflow.state import State
    from keras_vit.training.tensorflow.step import make_train_steps

    @functools.cache
    def trained(replicas, parts):
        strategy = tiny.strategy_of(replicas)
        config = ConfigDict(recipes.defaults(batch_size=tiny.batch, accumulate_steps=parts))
        with strategy.scope():
            model = new_model()
            optimizer = optimizers.get("sgd", 0.1)
            optimizer.build(model.trainable_variables)
            state = State(model, optimizer)
        train_steps = make_train_steps(strategy, state, MeanOfPatches(config), config)
        inputs = tiny.input_of(train=24)
        iterator = iter(distributed_batches(strategy, inputs, inputs.train_batches))
        outputs = train_steps(iterator, tf.constant(0), tf.constant(1), tf.constant(0.0))
        return model, outputs["metrics"].numpy()

    return trained


def test_moving_averages_follow_the_batches(train, tiny):
    model, _ = train(1, 1)
    before = new_model()
    images, *_ = next(iter(tiny.input_of(train=24).train_batches()))
    tokens = before.norm(before.encode(before.embed(ops.convert_to_tensor(images.numpy()))))
    patches = np.asarray(tokens)[:, before.num_prefix_tokens :]
    norm = model.head.batch_norm
    np.testing.assert_allclose(norm.moving_mean, 0.1 * patches.mean((0, 1)), atol=1e-5)
    expected = 0.9 + 0.1 * patches.var((0, 1))
    np.testing.assert_allclose(norm.moving_variance, expected, atol=1e-5)


def test_two_replicas_equal_one(train):
    model, metrics = train(2, 1)
    alone, metrics_alone = train(1, 1)
    np.testing.assert_allclose(metrics, metrics_alone, rtol=1e-5, atol=1e-6)
    for weight, expected in zip(model.weights, alone.weights):
        atol = 1e-3 if "key/bias" in weight.path else 1e-5
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), atol=atol, err_msg=weight.path)


def test_micro_batches_have_their_own_moments(train):
    model, metrics = train(1, 2)
    alone, _ = train(1, 1)
    assert np.isfinite(metrics).all()
    means = [np.asarray(each.head.batch_norm.moving_mean) for each in (model, alone)]
    assert np.abs(means[0] - means[1]).max() > 1e-4


@pytest.mark.parametrize("field", [{"accumulate_steps": 2}, {"xla": True}])
def test_replicas_refuse_nested_graphs(field, tiny):
    from keras_vit.training.tensorflow import TensorFlowEngine

    config = ConfigDict(recipes.defaults(batch_size=tiny.batch, **field))
    engine = TensorFlowEngine(tiny.strategy_of(2))
    with pytest.raises(ValueError, match="BatchNorm requires accumulate_steps=1"):
        engine.build(config, MeanOfPatches(config), tiny.input_of(), 3)
