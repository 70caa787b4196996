"""Tests of image-text training: the losses, several devices, resuming, and refused configs."""

import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import data, tasks, training
from keras_vit.optimizers.base import decay_flags
from keras_vit.recipes.image_text import image_text
from keras_vit.tasks import contrastive

SCRIPT = Path(__file__).parent / "captioned.py"
SPEC = importlib.util.spec_from_file_location("captioned", SCRIPT)
captioned = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(captioned)


@pytest.fixture(autouse=True)
def toy_data(monkeypatch):
    monkeypatch.setitem(data.SOURCES, "captioned", captioned.captioned)
    monkeypatch.setattr(captioned.texts, "tokenizer_of", captioned.ToyTokenizer)
    monkeypatch.setattr(captioned.image_text, "Tokenizer", captioned.ToyTokenizer)


def pairs_of(images, texts, first=0, count=None, weights=None):
    images, texts = ops.normalize(images), ops.normalize(texts)
    part = slice(first, count and first + count)
    weights = ops.ones((len(images),)) if weights is None else ops.convert_to_tensor(weights)
    return contrastive.Pairs(images[part], texts[part], images, texts, first, weights)


def value_and_gradients(function, arguments):
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(jax.value_and_grad(function, range(len(arguments))))(*arguments)
    import tensorflow as tf

    @tf.function
    def compute(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            value = function(*arguments)
        zero = tf.UnconnectedGradients.ZERO
        return value, tape.gradient(value, arguments, unconnected_gradients=zero)

    return compute(*map(tf.constant, arguments))


@pytest.mark.parametrize("rows", [8, 3])
@pytest.mark.parametrize(("loss", "name"), [("softmax", "clip"), ("sigmoid", "siglip")])
def test_losses_and_gradients_agree_with_open_clip(loss, name, rows, golden, monkeypatch):
    monkeypatch.setattr(contrastive, "BLOCK_ROWS", rows)
    known = golden("text/image_text_losses")
    names = ("image", "text", "log_scale", "bias")[: 4 if name == "siglip" else 3]
    arguments = [known[f"{name}/{part}"].astype("float32") for part in names]

    def mean_loss(images, texts, log_scale, bias=0.0):
        pairs = pairs_of(images, texts)
        return ops.mean(contrastive.get(loss)(pairs, ops.exp(log_scale), bias))

    value, gradients = value_and_gradients(mean_loss, arguments)
    np.testing.assert_allclose(value, known[f"{name}/loss"], rtol=1e-5)
    for part, gradient in zip(names, gradients):
        np.testing.assert_allclose(gradient, known[f"{name}/d_{part}"], atol=1e-5, err_msg=part)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_pairs_of_weight_0_do_not_count(loss):
    random = np.random.default_rng(0)
    images, texts = (random.normal(size=(6, 5)).astype("float32") for _ in range(2))
    weights = np.array([1, 0, 1, 1, 0, 1], "float32")
    few = pairs_of(images[weights > 0], texts[weights > 0])
    every = pairs_of(images, texts, weights=weights)
    for function in (lambda pairs: contrastive.get(loss)(pairs, 5.0), contrastive.right_texts):
        ours = np.asarray(function(every))
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours[weights > 0], function(few), atol=1e-5)
    # The second half of the pairs, as on a second device.
    half = pairs_of(images, texts, first=3, count=3, weights=weights)
    np.testing.assert_allclose(contrastive.right_texts(half), np.asarray(ours)[3:])


def test_right_texts():
    texts = np.eye(4, dtype="float32")[[0, 1, 2, 2]]
    images = np.eye(4, dtype="float32")[[0, 2, 2, 2]]
    assert np.asarray(contrastive.right_texts(pairs_of(images, texts))).tolist() == [1, 0, 0.5, 0.5]
    same = np.ones((5, 2), "float32")  # a model that collapsed is right by chance
    np.testing.assert_allclose(contrastive.right_texts(pairs_of(same, same)), 0.2, rtol=1e-6)


def _step(devices, loss):
    """Runs a step of SGD with rate 1; returns its metrics and the weights after it."""
    keras.utils.set_random_seed(0)
    fields = {"name": "sgd"}, {"decay": "constant", "base": 1.0}
    config = captioned.config_of(loss, optimizer=fields[0], schedule=fields[1], clip_norm=0.0)
    config.model.dropout = config.model.text.dropout = 0.0
    task = tasks.get(config)
    inputs = training.weights.load_inputs(config, print, task)
    engine = captioned.engine_of(devices)
    engine.build(config, task, inputs, 6)
    variables = engine.model.trainable_variables
    before = [np.array(variable.numpy()) for variable in variables]
    outputs = engine.train(0, 1)
    gradients = [old - variable.numpy() for old, variable in zip(before, variables)]
    paths = [variable.path for variable in variables]
    return outputs.metrics, list(zip(paths, gradients)), engine.evaluate()


@pytest.mark.full
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_two_devices_match_one(loss, monkeypatch):
    if keras.backend.backend() == "jax":
        import jax

        if len(jax.devices()) < 2:
            pytest.skip("needs two devices")
    one, gradients, means = _step(1, loss)
    monkeypatch.setattr(contrastive, "BLOCK_ROWS", 8)
    two, others, other_means = _step(2, loss)
    for name in ("loss", "accuracy", "grad_norm"):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5)
    for (path, gradient), (_, other) in zip(gradients, others):
        atol = 1e-5 * max(np.abs(gradient).max(), 1)
        np.testing.assert_allclose(other, gradient, atol=atol, err_msg=path)
        assert np.abs(gradient).max() > 1e-4 or "key/bias" in path or path.endswith("logit_bias")
    assert other_means == pytest.approx(means, rel=1e-5)
    assert means["examples"] == 324


@pytest.mark.parametrize(
    ("loss", "names"),
    [("softmax", ["logit_scale"]), ("sigmoid", ["logit_scale", "logit_bias"])],
)
def test_recipes_do_not_decay_scale_and_bias(loss, names):
    task = tasks.get(captioned.config_of(loss))
    variables = task.build_model(training.weights.load_inputs(task.config, print, task)).weights
    flags = decay_flags(variables, "all", image_text("test")["optimizer"]["no_decay"])
    spared = [v.path.split("/")[-1] for v, decays in zip(variables, flags) if not decays]
    assert spared == names


@pytest.mark.full
def test_resume_after_sigkill_is_bit_exact(scripts, tmp_path):
    whole = captioned.start(tmp_path / "whole", 2, lambda line: None)
    died = scripts.run(SCRIPT, tmp_path / "run", 2, "step 5/6")
    assert died.returncode == -9, died.stderr
    lines = []
    resumed = captioned.start(tmp_path / "run", 2, lines.append)
    assert any(line.startswith("resuming from step 4,") for line in lines)
    for ours, theirs in zip(resumed.model.get_weights(), whole.model.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    files = [tmp_path / name / "metrics.csv" for name in ("run", "whole")]
    assert files[0].read_text() == files[1].read_text()


def test_unsupported_fields_are_refused():
    for changes, message in (
        ({"accumulate_steps": 2}, "accumulate_steps. must be 1.*another loss"),
        ({"xla": True}, "xla. must be False"),
        ({"loss": "hinge"}, "loss. must be one of softmax, sigmoid"),
    ):
        with pytest.raises(ValueError, match=message):
            tasks.get(captioned.config_of(**changes))
    config = captioned.config_of()
    config.model.text = {"width": 3}
    with pytest.raises(ValueError, match="must have fields among.*Received: width"):
        tasks.get(config)
    config = captioned.config_of()
    config.model.bias = 0.0
    inputs = training.weights.load_inputs(config, print, tasks.get(config))
    with pytest.raises(ValueError, match="towers without a bias"):
        tasks.get(config).build_model(inputs)


def test_pairs_get_remat_and_the_tokenizer_of_the_data(monkeypatch):
    built = captioned.config_of(remat=True)
    task = tasks.get(built)
    inputs = training.weights.load_inputs(built, print, task)
    towers = task.build_model(inputs)
    config = captioned.config_of(remat=True, weights="a/pair")
    del config.model.text
    received = {}
    monkeypatch.setattr(
        captioned.image_text.families,
        "from_pretrained",
        lambda _, **kw: received.update(kw) or towers,
    )
    monkeypatch.setattr(captioned.image_text, "tokenizer_of", lambda *_: None)
    tasks.get(config).build_model(inputs)
    assert received["remat"] is True and received["tokenizer"] == "toy"
