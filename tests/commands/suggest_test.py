"""Tests of `keras-vit suggest` with a given duration of a step."""

import re
import shlex

import pytest
from absl import flags

from ..shared import ROOT
from .conftest import random_pixels, write_image

PROGRAM = """
import sys
import keras_vit_cli
import tensorflow as tf
from keras_vit.commands import suggest

def choose_engine(config):
    (cpu,) = tf.config.list_physical_devices("CPU")
    # TensorFlow refuses this once it has started.
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    print("devices are chosen")

suggest.training.choose_engine = choose_engine
suggest._time = lambda config: (float(sys.argv[1]), 87)
keras_vit_cli.main(["suggest", *sys.argv[2:]])
"""


@pytest.fixture
def photos(tmp_path):
    """A folder of 60 images, 54 of them for training."""
    folder = tmp_path / "my photos, old"
    for i in range(60):
        write_image(folder / "ab"[i % 2] / f"{i}.jpg", random_pixels(40, 50, 3))
    return folder


def _commands(scripts, seconds, photos, *flags):
    """Returns the output of the command, and the commands that it prints."""
    program = photos.parent / "program.py"
    program.write_text(PROGRAM)
    done = scripts.run(program, str(seconds), f"--data={photos}", *flags, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout, [shlex.split(line) for line in re.findall("  keras-vit (.*)", done.stdout)]


def test_suggested_commands_are_valid(scripts, cli, photos):
    output, (scratch, tuned, probe) = _commands(scripts, 0.1, photos)
    assert output.startswith("devices are chosen")
    assert "54 training and 6 test images, median size 50 x 40 pixels" in output
    assert "3 min, downloads 87 MB: fine-tunes" in output
    assert {"--config.batch_size=8", "--config.total_steps=202"} < set(scratch) & set(tuned)
    evals = flags.ListParser().parse(probe[-1].removeprefix("--evals="))
    assert evals == [f"linear_probe:folder@{photos}"]
    for _, *arguments in (scratch, tuned):
        done = cli("verify-data", *arguments)  # takes the flags of `train`
        assert "60 examples: 0 bad" in done.stdout, done.stderr


def test_minutes_limit_the_steps(scripts, photos):
    output, (_, tuned, _) = _commands(scripts, 0.1, photos, "--minutes=1")
    assert "--config.total_steps=72" in tuned
    assert "1 min, downloads 87 MB: fine-tunes" in output
    output, (probe,) = _commands(scripts, 1.0, photos, "--minutes=1")
    assert probe[0] == "evaluate"
    assert "not small_data:DINOv2-S/14,folder: 5 epochs take" in output
