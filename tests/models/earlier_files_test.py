"""Tests of files that were written before NaFlex models had a class of their own."""

import numpy as np
import pytest

import keras_vit

from ..shared import GOLDEN, to_numpy

FILES = GOLDEN / "version_0_2"


@pytest.mark.parametrize(
    ("name", "images", "kind"),
    [
        ("plain.keras", "images", "VisionTransformer"),
        ("plain.npz", "images", "VisionTransformer"),
        ("naflex.keras", "batch", "NaFlexVisionTransformer"),
        ("naflex.npz", "batch", "NaFlexVisionTransformer"),
    ],
)
def test_file_of_an_earlier_version_loads(name, images, kind):
    load = keras_vit.load_keras_file if name.endswith(".keras") else keras_vit.from_pretrained
    model = load(FILES / name)
    assert type(model).__name__ == kind
    with np.load(FILES / "io.npz") as file:
        expected = file[name.partition(".")[0]]
        np.testing.assert_allclose(to_numpy(model(file[images])), expected, atol=1e-5)
