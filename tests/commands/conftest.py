"""Fixtures and helpers of the tests of commands."""

import keras
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from keras_vit.commands import predict

from ..shared import ROOT


@pytest.fixture
def cli(scripts):
    """Returns a function that runs `keras-vit` with arguments in the repository's root folder."""
    return lambda *arguments: scripts.run("-m", "keras_vit", *arguments, cwd=ROOT)


@pytest.fixture
def removed_flags():
    """Removes the flags that a command defines in this process."""
    known = set(flags.FLAGS)
    yield
    for name in set(flags.FLAGS) - known:
        delattr(flags.FLAGS, name)


@pytest.fixture
def run_predict(removed_flags):
    """Returns a function that runs `keras-vit predict` in this process."""
    predict.define_flags()

    @flagsaver.flagsaver()
    def run(*arguments):
        _, *sources = predict.FLAGS(["predict", *map(str, arguments)])
        predict.main(*sources)

    return run


def error_line(done):
    """Returns the error message of a command, which must be the last line on standard error."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def random_pixels(*shape, seed=0):
    """Returns random uint8 pixels."""
    return np.random.default_rng(seed).integers(0, 256, shape, "uint8")


def write_image(path, pixels):
    """Writes pixels `(H, W, C)` to an image file and creates the file's folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    keras.utils.save_img(path, pixels, scale=False)
