"""Compiles the steps of image-text training for a TPU."""

import pytest

from keras_vit import data

from .conftest import TINY_MODEL

TOWER = {name: TINY_MODEL[name] for name in ("num_layers", "hidden_size", "mlp_dim", "num_heads")}


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_image_text_training_compiles(loss, tiny, tpu_compiler):
    fields = {"name": "captions", "image_size": 8, "classes": 1, "text_length": 6}
    text = {**TOWER, "vocabulary_size": 30}
    bias = -1.0 if loss == "sigmoid" else 0.0
    check = tiny.check(
        "v5e:2x2",
        model={"classifier": "map", "text": text, "bias": bias},
        task="image_text",
        loss=loss,
        data=data.defaults(**fields),
    )
    assert check.fits
    assert not check.error
    assert check.train.flops > 0
