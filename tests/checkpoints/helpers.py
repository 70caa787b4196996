"""Builds small models, compares their weights and logits, and checks that bad files are refused."""

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.names import canonical_variables

from ..shared import GOLDEN, GOLDEN_SIZES, assert_same_arrays, read_arrays, to_numpy

VIT_TOKEN = GOLDEN / "vit_token.ckpt.npz"


def small_model(**arguments):
    """Returns a model of the size of the golden files. `arguments` override the defaults."""
    defaults = {**GOLDEN_SIZES, "input_shape": (32, 32, 3)}
    return keras_vit.VisionTransformer(**{**defaults, **arguments})


def weights_of(model):
    """Returns a model's weights by their names in `vit_jax`."""
    return {name: np.asarray(variable) for name, variable in canonical_variables(model).items()}


def assert_matches_logits(model, case, atol=2e-5):
    """Compares a model's logits with those of the reference implementation."""
    expected = read_arrays(GOLDEN / f"{case}.io.npz")
    logits = to_numpy(model(expected["inputs"]))
    np.testing.assert_allclose(logits, expected["logits"], atol=atol)


def assert_rejected(source, message, model=None):
    """Checks that loading a file raises a `ValueError` and leaves the model unchanged."""
    model = model or small_model()
    before = weights_of(model)
    for head in ("keep", "new"):
        with pytest.raises(ValueError, match=message) as error:
            checkpoints.load(model, source, head=head)
        assert str(source) in str(error.value)
    assert_same_arrays(weights_of(model), before)
