"""Tests of image-text training: the losses, several devices, resuming, and refused configs."""

import signal
from unittest import mock

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit import data, tasks, training
from keras_vit.optimizers.base import decay_flags
from keras_vit.recipes.image_text import image_text
from keras_vit.tasks import contrastive

from ..shared import assert_close, assert_same_weights, value_and_gradients
from . import captioned


@pytest.fixture(autouse=True)
def toy_data(monkeypatch):
    monkeypatch.setitem(data.SOURCES, "captioned", captioned.captioned)
    monkeypatch.setattr(captioned.texts, "tokenizer_of", captioned.ToyTokenizer)
    monkeypatch.setattr(captioned.image_text, "Tokenizer", captioned.ToyTokenizer)


def build_model(config):
    task = tasks.get(config)
    return task.build_model(training.weights.load_inputs(config, print, task))


def pairs_of(images, texts, first=0, weights=None):
    """Returns the pairs of a device, which has all pairs from number `first`."""
    images = ops.normalize(images)
    texts = ops.normalize(texts)
    weights = ops.ones((len(images),)) if weights is None else ops.convert_to_tensor(weights)
    return contrastive.Pairs(images[first:], texts[first:], images, texts, first, weights)


@pytest.mark.parametrize(
    "loss, name, rows",
    [("softmax", "clip", 8), ("sigmoid", "siglip", 8), ("sigmoid", "siglip", 3)],
)
def test_losses_and_gradients_agree_with_open_clip(loss, name, rows, golden, monkeypatch):
    monkeypatch.setattr(contrastive, "BLOCK_ROWS", rows)
    expected = golden("text/image_text_losses")
    names = ("image", "text", "log_scale", "bias")[: 4 if name == "siglip" else 3]
    arguments = [expected[f"{name}/{part}"].astype("float32") for part in names]

    def mean_loss(images, texts, log_scale, bias=0.0):
        pairs = pairs_of(images, texts)
        return ops.mean(contrastive.get(loss)(pairs, ops.exp(log_scale), bias))

    value, gradients = value_and_gradients(mean_loss, arguments)
    assert_close(value, expected[f"{name}/loss"])
    for part, gradient in zip(names, gradients):
        np.testing.assert_allclose(gradient, expected[f"{name}/d_{part}"], atol=1e-5, err_msg=part)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_pairs_of_weight_0_do_not_count(loss):
    random = np.random.default_rng(0)
    images, texts = (random.normal(size=(6, 5)).astype("float32") for _ in range(2))
    weights = np.array([1, 0, 1, 1, 0, 1], "float32")
    few = pairs_of(images[weights > 0], texts[weights > 0])
    every = pairs_of(images, texts, weights=weights)
    for function in (lambda pairs: contrastive.get(loss)(pairs, 5.0), contrastive.right_texts):
        values = np.asarray(function(every))
        assert np.isfinite(values).all()
        np.testing.assert_allclose(values[weights > 0], function(few), atol=1e-5)


def test_right_texts():
    texts = np.eye(4, dtype="float32")[[0, 1, 2, 2]]
    images = np.eye(4, dtype="float32")[[0, 2, 2, 2]]
    shares = contrastive.right_texts(pairs_of(images, texts))
    np.testing.assert_array_equal(shares, [1, 0, 0.5, 0.5])
    # The second half of the pairs, as on a second device.
    half = contrastive.right_texts(pairs_of(images, texts, first=2))
    np.testing.assert_array_equal(half, shares[2:])
    same = np.ones((5, 2), "float32")  # a model that collapsed is right by chance
    np.testing.assert_allclose(contrastive.right_texts(pairs_of(same, same)), 0.2, rtol=1e-6)


def train_one_step(devices, loss):
    """Runs a step of SGD with rate 1, and returns its metrics, `(path, gradient)` of each
    variable, and the metrics of an evaluation."""
    keras.utils.set_random_seed(0)
    fields = {"optimizer": {"name": "sgd"}, "schedule": {"decay": "constant", "base": 1.0}}
    config = captioned.config_of(loss, clip_norm=0.0, **fields)
    config.model.dropout = config.model.text.dropout = 0.0
    task = tasks.get(config)
    engine = captioned.engine_of(devices)
    engine.build(config, task, training.weights.load_inputs(config, print, task), 6)
    variables = engine.model.trainable_variables
    before = [variable.numpy().copy() for variable in variables]
    outputs = engine.train(0, 1)
    gradients = [
        (variable.path, old - variable.numpy()) for old, variable in zip(before, variables)
    ]
    return outputs.metrics, gradients, engine.evaluate()


@pytest.mark.full
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_two_devices_match_one(loss, monkeypatch):
    metrics, gradients, evaluation = train_one_step(1, loss)
    monkeypatch.setattr(contrastive, "BLOCK_ROWS", 8)
    other_metrics, other_gradients, other_evaluation = train_one_step(2, loss)
    for name in ("loss", "accuracy", "grad_norm"):
        assert other_metrics[name] == pytest.approx(metrics[name], rel=1e-5)
    for (path, gradient), (_, other) in zip(gradients, other_gradients):
        atol = 1e-5 * max(np.abs(gradient).max(), 1)
        np.testing.assert_allclose(other, gradient, atol=atol, err_msg=path)
        assert np.abs(gradient).max() > 1e-4 or "key/bias" in path or path.endswith("logit_bias")
    assert other_evaluation == pytest.approx(evaluation, rel=1e-5)
    assert evaluation["examples"] == 324


def test_recipes_do_not_decay_scale_and_bias():
    model = build_model(captioned.config_of())
    flags = decay_flags(model.weights, "all", image_text("test")["optimizer"]["no_decay"])
    without_decay = [variable.name for variable, decays in zip(model.weights, flags) if not decays]
    assert without_decay == ["logit_scale", "logit_bias"]


@pytest.mark.full
def test_resume_after_sigkill_is_bit_exact(scripts, tmp_path):
    whole = captioned.start(tmp_path / "whole", 2)
    died = scripts.run(captioned.__file__, tmp_path / "run", 2, "step 5/6")
    assert died.returncode == -signal.SIGKILL, died.stderr
    lines = []
    resumed = captioned.start(tmp_path / "run", 2, lines.append)
    assert any(line.startswith("resuming from step 4,") for line in lines)
    assert_same_weights(resumed.model, whole.model)
    run, expected = ((tmp_path / name / "metrics.csv").read_text() for name in ("run", "whole"))
    assert run == expected


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"accumulate_steps": 2}, "accumulate_steps. must be 1"),
        ({"xla": True}, "xla. must be False"),
        ({"loss": "hinge"}, "loss. must be one of"),
        ({"text": {"width": 3}}, "must have fields among.*Received: width"),
        ({"model": {}}, "text. must be set unless.*Received: no text"),
        ({"model": {"text": captioned.SIZES, "depth": 0}}, "does not have. Received: depth"),
        ({"bias": 0.0}, "towers without a bias"),
    ],
)
def test_unsupported_fields_are_refused(changes, message):
    config = captioned.config_of()
    for name, value in changes.items():
        group = config.model if name in config.model else config
        group[name] = value
    with pytest.raises(ValueError, match=message):
        build_model(config)


def test_image_size_is_that_of_the_config_or_of_one_size():
    config = captioned.config_of()
    config.model.input_shape = (12, 8, 1)
    assert build_model(config).image_shape == (12, 8, 1)
    config.data.update(max_patches=16, patch_size=4, shift=0)
    with pytest.raises(ValueError, match="VisionTransformer takes images of one size"):
        build_model(config)


def test_remat_applies_to_both_towers():
    model = build_model(captioned.config_of(remat=True))
    assert model.image.arguments["remat"] and model.text.arguments["remat"]


@pytest.fixture
def weights(tmp_path):
    """Returns the path of an image tower with SwiGLU for gray images."""
    sizes = {**captioned.SIZES, "patch_size": 4}
    model = keras_vit.VisionTransformer(**sizes, input_shape=(8, 8, 1), mlp="swiglu", classes=3)
    keras_vit.checkpoints.save(model, tmp_path / "weights.npz")
    return str(tmp_path / "weights.npz")


def build_from_weights(weights, **model):
    config = captioned.config_of(weights=weights, weights_channels="tile")
    config.model.update(model)
    return build_model(config)


def test_image_tower_has_the_structure_and_values_of_the_weights(weights):
    # The default of a field of the config does not replace the value of the weights.
    image = build_from_weights(weights, classifier="token", mlp="").image
    assert image.arguments["mlp"] == "swiglu" and image.arguments["dropout"] == 0.1
    gray = keras_vit.from_pretrained(weights, head="new").patch_encoder.kernel
    kernel = np.reshape(image.patch_encoder.kernel, (16, 3, -1))
    assert_close(kernel.sum(1), gray)


@pytest.mark.parametrize(
    "model, message",
    [
        ({"classifier": "map"}, "no attention pooling.* --config.model.classifier=token"),
        ({"classifier": "token", "num_layers": 2}, "The checkpoint must have the model's"),
    ],
)
def test_image_tower_of_another_structure_than_the_weights_is_refused(model, message, weights):
    with pytest.raises(ValueError, match=message):
        build_from_weights(weights, **model)


def test_published_pair_gets_fields_and_the_tokenizer_of_the_data(monkeypatch):
    task = tasks.get(captioned.config_of())
    inputs = training.weights.load_inputs(task.config, print, task)
    towers = task.build_model(inputs)
    config = captioned.config_of(remat=True, weights="a/pair")
    del config.model.text, config.model.bias
    load = mock.Mock(return_value=towers)
    monkeypatch.setattr(captioned.image_text.families, "from_pretrained", load)
    monkeypatch.setattr(captioned.image_text, "tokenizer_of", lambda model: None)
    tasks.get(config).build_model(inputs)
    received = load.call_args.kwargs
    assert received["remat"] is True and received["tokenizer"] == "toy"
    assert received["dropout"] == 0.1 and "mlp" not in received
    config.model.bias = 0.0
    with pytest.raises(ValueError, match="must not be set for a published pair"):
        tasks.get(config).build_model(inputs)
