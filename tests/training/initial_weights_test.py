"""Tests of `config.weights`: the initial weights of a run, and the preprocessing they expect."""

import shutil

import numpy as np
import pytest

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
    """Writes a model for seven classes to a .npz file or a .keras file, and returns the model."""
    model = keras_vit.VisionTransformer(classes=7, **{**small_run.MODEL, **changes})
    if path.endswith(".keras"):
        model.save(path)
    else:
        keras_vit.checkpoints.save(model, path)
    return model


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "source.npz")


def inputs_of(weights, **fields):
    """Returns the inputs of a run with these weights, and the lines of its log."""
    lines = []
    config = small_run.config_of(data=data.defaults(name="digits", **fields), weights=weights)
    return load_inputs(config, lines.append, tasks.get(config)), lines


def test_images_are_normalized_as_the_weights_expect(path):
    save_model(path, preprocessing=Preprocessing(mean=(10, 20, 30), std=(40, 50, 60)))
    inputs, lines = inputs_of(path)
    assert "mean=(10, 20, 30), std=(40, 50, 60), as the weights expect" in lines[0]
    assert inputs.model_preprocessing().mean == pytest.approx((10, 20, 30))
    assert inputs.model_preprocessing().std == pytest.approx((40, 50, 60))
    images, *_ = next(iter(inputs.eval_batches()))
    assert images.numpy().min() == pytest.approx(-30 / 60)  # a black pixel in the last channel


def test_normalization_of_the_config_comes_first(path):
    save_model(path, preprocessing=Preprocessing(mean=(9,) * 3, std=(5,) * 3))
    # Pixels of the digits are at most 16, so 8 is in the middle.
    inputs, lines = inputs_of(path, mean=(8.0,) * 3, std=(8.0,) * 3)
    assert lines[0].startswith("warning: the weights expect images normalized with ")
    assert inputs.model_preprocessing().mean == pytest.approx((127.5,) * 3)


@pytest.mark.parametrize(("chosen", "library"), [("", "torchvision"), ("vit_jax", "vit_jax")])
def test_training_decodes_like_the_library_of_the_weights(chosen, library, path):
    save_model(path, preprocessing=Preprocessing(library="torchvision"))
    inputs, lines = inputs_of(path, library=chosen)
    assert inputs.model_preprocessing().library == inputs.train_options.library == library
    assert any("decoded as in torchvision" in line for line in lines) == (not chosen)


def test_preprocessing_depends_on_the_size():
    fields = families.model_config("CLIP-L/14")
    config = small_run.config_of(data={"name": "digits"}, weights="laion2b", **fields)
    preprocessing = load_inputs(config, print, tasks.get(config)).model_preprocessing()
    assert preprocessing.mean == (127.5,) * 3
    assert preprocessing.library == "torchvision"


def test_model_has_preprocessing_of_data(path, tmp_path):
    save_model(path, preprocessing=Preprocessing(crop_fraction=0.5))
    model, inputs = build(tmp_path / "run", weights=path)
    assert keras_vit.preprocessing_of(model) == inputs.model_preprocessing()


@pytest.mark.parametrize("ending", ["npz", "keras"])
def test_run_at_a_larger_size_starts_from_a_file_with_a_new_head(ending, tmp_path):
    path = str(tmp_path / f"source.{ending}")
    source = save_model(path, preprocessing=Preprocessing(mean=(10, 20, 30), std=(40, 50, 60)))
    fields = data.defaults(name="digits", image_size=16)
    larger = {**small_run.MODEL, "input_shape": (16, 16, 3)}
    model, inputs = build(tmp_path / "run", weights=path, data=fields, model=larger)
    assert inputs.model_preprocessing().mean == pytest.approx((10, 20, 30))
    for name in ("embedding", "encoderblock_0", "encoder_norm"):
        assert_same_weights(model.get_layer(name), source.get_layer(name))
    assert model.output_shape == (None, 10) and not to_numpy(model.head.kernel).any()


def test_rgb_run_starts_from_one_channel_weights(path, tmp_path):
    gray = save_model(path, input_shape=(8, 8, 1))
    with pytest.raises(ValueError, match="`weights_channels` in a config"):
        build(tmp_path / "refused", weights=path)
    model, _ = build(tmp_path / "run", weights=path, weights_channels="sum")
    kernel, expected = (to_numpy(each.get_layer("embedding").kernel) for each in (model, gray))
    green = kernel.reshape(-1, 3, kernel.shape[1])[:, 1]
    np.testing.assert_allclose(green, expected / 3, atol=1e-6)


@pytest.mark.full
def test_continues_a_run(tmp_path):
    first = str(tmp_path / "first")
    short = {"total_steps": 2, "eval_every_steps": 0, "schedule": {"base": 1e-2}}
    trained = small_run.start("alone", first, **short).model
    # The classes are the same, so the head is kept.
    model, _ = build(tmp_path / "same", weights=first)
    assert_same_weights(model, trained)
    with pytest.raises(ValueError, match="num_layers` must be 1, to match `config.weights`"):
        build(tmp_path / "refused", weights=first, model={**small_run.MODEL, "num_layers": 2})
    # The arguments of the model come from the first run.
    lines = []
    other = {**short, "weights": first, "model": {"input_shape": (8, 8, 3)}}
    small_run.start("alone", tmp_path / "other", lines.append, **other)
    assert f"{first} is a VisionTransformer, patch_size=4, num_layers=1" in "".join(lines)
    assert f"the head is that of {first}" in "".join(lines)
    # The new run resumes without the first one.
    shutil.rmtree(first)
    small_run.start("alone", tmp_path / "other", **other)


@pytest.mark.one_backend
def test_weights_are_downloaded_before_model_is_built(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        tasks.Classification, "build_model", lambda *_: pytest.fail("the model was built")
    )
    with pytest.raises(ConnectionError, match="could not be downloaded .*: http://127.0.0.1:9"):
        small_run.start("alone", tmp_path / "run", str, weights="http://127.0.0.1:9/x.npz")
