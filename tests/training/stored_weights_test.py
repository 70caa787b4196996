"""Tests of runs whose initial weights are those of a run, an export or a .keras file."""

import shutil

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import training

from . import small_run


class Built(Exception):
    """Ends a run before its first step; has the model and the inputs."""


def build(workdir, **changes):
    """Returns the model and the inputs of a run before its first step."""

    def stop(*both):
        raise Built(*both)

    config = small_run.config_of(**{"total_steps": 3, **changes})
    with pytest.raises(Built) as built:
        training.run(config, training.Workdir(workdir, config.to_dict()), check=stop)
    return built.value.args


def test_starts_from_a_keras_file(tmp_path):
    preprocessing = keras_vit.Preprocessing(mean=(10, 20, 30), std=(40, 50, 60))
    source = keras_vit.VisionTransformer(classes=7, **small_run.MODEL, preprocessing=preprocessing)
    path = str(tmp_path / "source.keras")
    source.save(path)
    data = {**small_run.config_of().data.to_dict(), "image_size": 16}
    model = {**small_run.MODEL, "input_shape": (16, 16, 3)}
    built, inputs = build(tmp_path / "run", weights=path, data=data, model=model)
    assert inputs.model_preprocessing().mean == (10, 20, 30)
    assert built.preprocessing.std == (40, 50, 60)
    shapes = {weight.path: weight.shape for weight in source.weights}
    for weight in built.weights:
        ours = keras.ops.convert_to_numpy(weight)
        if weight.shape == shapes[weight.path] and "seed" not in weight.path:
            theirs = next(w for w in source.weights if w.path == weight.path)
            np.testing.assert_array_equal(ours, keras.ops.convert_to_numpy(theirs))
    assert not keras_vit.checkpoints.published._STAND_INS


@pytest.mark.full
def test_continues_a_run(tmp_path):
    first = str(tmp_path / "first")
    trained = small_run.start("alone", first, lambda line: None).model
    # The classes are the same, so the head is kept.
    built, _ = build(tmp_path / "same", weights=first)
    for ours, theirs in zip(built.get_weights(), trained.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    # A run for other classes keeps everything else. Its arguments come from the first run.
    lines = []
    other = {"weights": first, "model": {"input_shape": (8, 8, 3)}, "total_steps": 3}
    data = small_run.config_of().data.to_dict()
    small_run.start("alone", tmp_path / "other", lines.append, **other, data={**data, "shift": 0})
    assert f"{first} is a VisionTransformer, patch_size=4, num_layers=1" in "".join(lines)
    assert f"the head is that of {first}" in "".join(lines)
    with pytest.raises(ValueError, match="num_layers` must be 1, to match `config.weights`"):
        build(tmp_path / "refused", weights=first, model={**small_run.MODEL, "num_layers": 2})
    # The new run resumes without the first one.
    shutil.rmtree(first)
    small_run.start(
        "alone", tmp_path / "other", lambda line: None, **other, data={**data, "shift": 0}
    )
