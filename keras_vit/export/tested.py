"""Runs `self_test.py` on a written version and says what it found."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

from keras_vit.export.plain_copy import is_reduced

_SCRIPT = Path(__file__).with_name("self_test.py")
# Of a probability. Reduced precision is that of either side, of the model or of the export.
_TOLERANCES = {"float32": 1e-4, "reduced": 5e-2}


class SelfTestError(RuntimeError):
    """A written export does not answer as its model does."""


def tolerance_of(model, precision):
    """By how much a probability of an export may differ from its model's."""
    exact = precision == "float32" and not is_reduced(model)
    # A GPU or TPU multiplies float32 with fewer digits; the export is tested on the CPU.
    exact = exact and all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
    return _TOLERANCES["float32" if exact else "reduced"]


def largest_differences(folder, cases, tolerance):
    """Asks a SavedModel in a process of its own that imports TensorFlow only.

    Args:
        folder: of the SavedModel.
        cases: `{signature: {"inputs": tensor, output: the float32 tensor it must be, ...}}`.
        tolerance: the largest absolute difference that passes.

    Returns:
        `{signature: largest difference}`.

    Raises:
        SelfTestError: an answer is wrong, bad input is accepted, or the process ended.
    """
    with tempfile.TemporaryDirectory() as written:
        for name, case in cases.items():
            os.mkdir(f"{written}/{name}")
            for part, tensor in case.items():
                tf.io.write_file(f"{written}/{name}/{part}", tf.io.serialize_tensor(tensor))
        done = subprocess.run(
            # -P: the script's neighbours are not on its path. The devices are the parent's.
            [sys.executable, "-P", str(_SCRIPT), str(folder), written, str(tolerance)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
        raise SelfTestError(f"The export does not answer as the model does: {said[0]}. It was left in {folder}")
    return json.loads(done.stdout.strip().splitlines()[-1])
