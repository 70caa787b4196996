"""Tests of `config.weights`: the initial weights of a run, and the preprocessing they expect."""

import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import Preprocessing, data, families, tasks, training
from keras_vit.training.weights import load_inputs

from ..shared import assert_same_weights, to_numpy
from . import small_run


class Built(Exception):
    """Ends a run before its first step. Its arguments are the model and the inputs."""


def build(workdir, **changes):
    """Returns the model and the inputs of a run before its first step."""

    def stop(model, inputs):
        raise Built(model, inputs)

    config = small_run.config_of(**{"total_steps": 3, **changes})
    with pytest.raises(Built) as built:
        training.run(config, training.Workdir(workdir, config.to_dict()), check=stop)
    return built.value.args


def save_model(path, **changes):
    """Writes the weights of a model for seven classes, and returns the model."""
    model = keras_vit.VisionTransformer(classes=7, **{**small_run.MODEL, **changes})
    keras_vit.checkpoints.save(model, path)
    return model


def inputs_of(weights, /, **fields):
    """Returns the inputs of a run with these weights, and the lines of its log."""
    lines = []
    config = small_run.config_of(data={"name": "digits", **fields}, weights=str(weights))
    return load_inputs(config, lines.append), lines


def test_images_are_normalized_as_the_weights_expect(tmp_path):
    preprocessing = Preprocessing(mean=(10, 20, 30), std=(40, 50, 0.224 * 255))
    save_model(tmp_path / "source.npz", preprocessing=preprocessing)
    for fields in ({}, data.defaults(name="digits", shift=1)):
        inputs, lines = inputs_of(tmp_path / "source.npz", **fields)
        assert "mean=(10, 20, 30), std=(40, 50, 57.12), as the weights expect" in lines[0]
        assert inputs.model_preprocessing().mean == pytest.approx(preprocessing.mean)
        assert inputs.model_preprocessing().std == pytest.approx(preprocessing.std)
        image = next(iter(inputs.eval_batches()))[0][0]
        assert float(tf.reduce_min(image)) == pytest.approx(-30 / 57.12)


def test_normalization_of_the_config_comes_first(tmp_path):
    save_model(tmp_path / "source.npz", preprocessing=Preprocessing(mean=(9,) * 3, std=(5,) * 3))
    inputs, lines = inputs_of(tmp_path / "source.npz", mean=(8.0,) * 3, std=(8.0,) * 3)
    assert lines[0].startswith("warning: the weights expect images normalized with ")
    assert inputs.model_preprocessing().mean == pytest.approx((127.5,) * 3)


@pytest.mark.parametrize(("chosen", "library"), [("", "torchvision"), ("vit_jax", "vit_jax")])
def test_training_decodes_like_the_library_of_the_weights(chosen, library, tmp_path):
    save_model(tmp_path / "source.npz", preprocessing=Preprocessing(library="torchvision"))
    inputs, lines = inputs_of(tmp_path / "source.npz", library=chosen)
    assert inputs.model_preprocessing().library == inputs.train_options.library == library
    assert any("decoded as in torchvision" in line for line in lines) == (not chosen)


def test_preprocessing_depends_on_the_size():
    config = small_run.config_of(
        data={"name": "digits"}, weights="laion2b", **families.model_config("CLIP-L/14")
    )
    inputs = load_inputs(config, lambda line: None)
    assert inputs.model_preprocessing().mean == (127.5,) * 3
    assert inputs.model_preprocessing().library == "torchvision"


def test_model_has_preprocessing_of_data(tmp_path, monkeypatch):
    def load(model, *_, **__):
        layer = model.get_layer("expected_images")
        layer.preprocessing = dataclasses.replace(layer.preprocessing, crop_fraction=0.5)

    save_model(tmp_path / "source.npz")
    monkeypatch.setattr(training.weights, "load", load)
    model, inputs = build(tmp_path / "run", weights=str(tmp_path / "source.npz"))
    assert keras_vit.preprocessing_of(model) == inputs.model_preprocessing()


def test_new_head_is_zero(tmp_path):
    source = save_model(tmp_path / "source.npz")
    model, _ = build(tmp_path / "run", weights=str(tmp_path / "source.npz"))
    for name in ("embedding", "encoderblock_0"):
        assert_same_weights(model.get_layer(name), source.get_layer(name))
    assert model.output_shape == (None, 10) and not to_numpy(model.get_layer("head").kernel).any()


def test_rgb_run_starts_from_one_channel_weights(tmp_path):
    gray = save_model(tmp_path / "gray.npz", input_shape=(8, 8, 1))
    weights = str(tmp_path / "gray.npz")
    with pytest.raises(ValueError, match="`weights_channels` in a config"):
        build(tmp_path / "refused", weights=weights)
    model, _ = build(tmp_path / "run", weights=weights, weights_channels="sum")
    kernel, expected = (to_numpy(each.get_layer("embedding").kernel) for each in (model, gray))
    green = kernel.reshape(-1, 3, kernel.shape[1])[:, 1]
    np.testing.assert_allclose(green, expected / 3, atol=1e-6)


def test_starts_from_a_keras_file(tmp_path):
    preprocessing = Preprocessing(mean=(10, 20, 30), std=(40, 50, 60))
    source = keras_vit.VisionTransformer(classes=7, **small_run.MODEL, preprocessing=preprocessing)
    path = str(tmp_path / "source.keras")
    source.save(path)
    fields = {**small_run.config_of().data.to_dict(), "image_size": 16}
    sizes = {**small_run.MODEL, "input_shape": (16, 16, 3)}
    model, inputs = build(tmp_path / "run", weights=path, data=fields, model=sizes)
    assert inputs.model_preprocessing().mean == (10, 20, 30)
    assert model.preprocessing.std == (40, 50, 60)
    for name in ("embedding", "encoderblock_0", "encoder_norm"):
        assert_same_weights(model.get_layer(name), source.get_layer(name))
    assert not keras_vit.checkpoints.published._STAND_INS


@pytest.mark.full
def test_continues_a_run(tmp_path):
    first = str(tmp_path / "first")
    short = {"total_steps": 2, "eval_every_steps": 0, "schedule": {"base": 1e-2}}
    trained = small_run.start("alone", first, lambda line: None, **short).model
    # The classes are the same, so the head is kept.
    model, _ = build(tmp_path / "same", weights=first)
    assert_same_weights(model, trained)
    # A run on other data keeps it too. Its arguments come from the first run.
    lines = []
    fields = {**small_run.config_of().data.to_dict(), "shift": 0}
    other = {**short, "weights": first, "model": {"input_shape": (8, 8, 3)}, "data": fields}
    small_run.start("alone", tmp_path / "other", lines.append, **other)
    assert f"{first} is a VisionTransformer, patch_size=4, num_layers=1" in "".join(lines)
    assert f"the head is that of {first}" in "".join(lines)
    with pytest.raises(ValueError, match="num_layers` must be 1, to match `config.weights`"):
        build(tmp_path / "refused", weights=first, model={**small_run.MODEL, "num_layers": 2})
    # The new run resumes without the first one.
    shutil.rmtree(first)
    small_run.start("alone", tmp_path / "other", lambda line: None, **other)


@pytest.mark.one_backend
def test_weights_are_downloaded_before_model_is_built(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        tasks.Classification, "build_model", lambda *_: pytest.fail("the model was built")
    )
    with pytest.raises(ConnectionError, match="could not be downloaded .*: http://127.0.0.1:9"):
        small_run.start("alone", tmp_path / "run", str, weights="http://127.0.0.1:9/x.npz")
