"""Fixtures and helpers of the tests of commands."""

import keras
import numpy as np
import pytest
from absl import flags

from keras_vit.commands import predict

from ..shared import ROOT


@pytest.fixture
def cli(scripts):
    """Returns a function that runs `keras-vit` with arguments in the repository's root folder."""
    return lambda *arguments: scripts.run("-m", "keras_vit", *arguments, cwd=ROOT)


@pytest.fixture
def remove_flags():
    """Returns a function that removes the flags that commands have defined in this process. It is
    also called after the test."""
    known = set(flags.FLAGS)

    def remove():
        for name in set(flags.FLAGS) - known:
            delattr(flags.FLAGS, name)

    yield remove
    remove()


@pytest.fixture
def parse(remove_flags):
    """Returns a function that sets the flags of a command in this process and returns its
    positional arguments."""

    def parse_arguments(command, *arguments):
        remove_flags()
        command.define_flags()
        _, *positional = command.FLAGS(["keras-vit", *map(str, arguments)])
        return positional

    return parse_arguments


@pytest.fixture
def run_predict(parse):
    """Returns a function that runs `keras-vit predict` in this process."""
    return lambda *arguments: predict.main(*parse(predict, *arguments))


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
