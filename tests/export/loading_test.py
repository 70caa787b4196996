"""Tests of `export.load`."""

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import export

from ..shared import assert_same_weights, random_images
from .conftest import SHAPE, tiny_model


def test_loaded_model_matches_and_trains(exported):
    path, model = exported
    loaded = export.load(path)
    assert_same_weights(loaded, model)
    assert keras_vit.preprocessing_of(loaded) == keras_vit.preprocessing_of(model)
    loaded.compile("adamw", "mse")
    images = random_images((3, *SHAPE))
    losses = loaded.fit(images, np.zeros((3, 5)), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_loads_from_remote_file_system(tmp_path):
    model = tiny_model()
    model.save(tmp_path / "model.keras")
    tf.io.gfile.makedirs("ram://loading/1/assets.extra")
    tf.io.gfile.copy(
        str(tmp_path / "model.keras"), "ram://loading/1/assets.extra/model.keras", overwrite=True
    )
    assert export.load("ram://loading/1").count_params() == model.count_params()


def test_rejects_folder_without_model(tmp_path):
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ValueError, match="must contain assets.extra/model.keras"):
        export.load(tmp_path)
