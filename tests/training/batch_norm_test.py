"""Tests of BatchNorm in training: moving averages, replicas and micro-batches."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import LinearSegmenter, optimizers
from keras_vit.training.tensorflow import TensorFlowEngine
from keras_vit.training.tensorflow.state import State

from . import tiny

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="uses the engine of TensorFlow"
)


def new_segmenter():
    keras.utils.set_random_seed(0)
    return LinearSegmenter(classes=tiny.CLASSES, **tiny.MODEL)


def new_model():
    """Returns a model that classifies images by the mean logits of their patches."""
    segmenter = new_segmenter()
    kernel = segmenter.head.classifier.kernel
    kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
    return keras.Model(segmenter.input, ops.mean(segmenter.output, axis=(1, 2)))


def train(replicas=1, accumulate_steps=1):
    """Trains for a step. Returns the model and the metrics."""
    with tiny.strategy_of(replicas).scope():
        model = new_model()
        optimizer = optimizers.get("sgd", 0.1)
        optimizer.build(model.trainable_variables)
        state = State(model, optimizer)
    options = {"accumulate_steps": accumulate_steps}
    inputs = tiny.input_of(train=24)
    _, metrics, _ = tiny.train(replicas, steps=1, state=state, inputs=inputs, options=options)
    return model, metrics


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_moving_averages_follow_the_micro_batches(micro_batches):
    segmenter = new_segmenter()
    images, *_ = next(iter(tiny.input_of(train=24).train_batches()))
    tokens = segmenter.norm(
        segmenter.encode(segmenter.embed(ops.convert_to_tensor(images.numpy())))
    )
    mean, variance = 0.0, 1.0
    for part in np.split(np.asarray(tokens)[:, segmenter.num_prefix_tokens :], micro_batches):
        mean = 0.9 * mean + 0.1 * part.mean((0, 1))
        variance = 0.9 * variance + 0.1 * part.var((0, 1))
    model, _ = train(accumulate_steps=micro_batches)
    norm = model.get_layer("head").batch_norm
    np.testing.assert_allclose(norm.moving_mean, mean, atol=1e-5)
    np.testing.assert_allclose(norm.moving_variance, variance, atol=1e-5)


def test_two_replicas_equal_one():
    model, metrics = train(replicas=2)
    alone, metrics_alone = train()
    np.testing.assert_allclose(metrics, metrics_alone, rtol=1e-5, atol=1e-6)
    for weight, expected in zip(model.weights, alone.weights):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), atol=1e-5, err_msg=weight.path)


@pytest.mark.parametrize("field", [{"accumulate_steps": 2}, {"xla": True}])
def test_replicas_refuse_nested_graphs(field):
    task = tiny.classification(batch_size=tiny.BATCH, **field)
    task.build_model = lambda inputs: new_segmenter()
    with pytest.raises(ValueError, match="BatchNorm requires accumulate_steps=1"):
        TensorFlowEngine(tiny.strategy_of(2)).build(task.config, task, tiny.input_of(), 3)
