"""Verifies a written SavedModel in a child process that does not import keras_vit, like a server.

`verify` runs `python -P verification.py FOLDER CASES TOLERANCE`, so this module imports nothing
from keras_vit at module level. CASES contains a folder per signature, with a file for the tensor
`inputs` and for each float32 output. The child process prints the differences.
"""

import json
import os
import sys
import tempfile

import numpy as np
import tensorflow as tf


class SelfTestError(RuntimeError):
    """Raised if the verification of a written export fails."""


def tolerance_of(model, precision):
    """Returns the largest difference that `verify` accepts for an export in `precision`, relative
    to the scale of the outputs; see `_scale_of`."""
    from keras_vit.export.graph import uses_reduced_precision

    exact = precision == "float32" and not uses_reduced_precision(model)
    # The export is verified on the CPU. A model on a GPU or TPU may multiply float32 in lower
    # precision.
    exact = exact and all(
        device.device_type == "CPU" for device in tf.config.list_logical_devices()
    )
    return 1e-4 if exact else 5e-2


def example_files(image_shape):
    """Returns three deterministic image files, as bytes: smooth noise in a size that differs
    from the model's."""
    height, width, channels = image_shape
    is_png = channels in (2, 4)
    stored = channels if is_png else 3
    noise = tf.constant(np.random.default_rng(0).uniform(0, 255, (3, 5, 7, stored)), tf.float32)
    size = (height + height // 4 + 1, width + width // 2 + 2)
    encode = tf.io.encode_png if is_png else tf.io.encode_jpeg
    return [encode(image).numpy() for image in tf.cast(tf.image.resize(noise, size), tf.uint8)]


def verification_case(signature, image_files):
    """Returns a signature's example inputs and float32 outputs as a dict of tensors; the key of the
    inputs is "inputs"."""
    inputs = signature.example_inputs(image_files)
    try:
        outputs = {
            name: output
            for name, output in signature.function(inputs).items()
            if output.dtype == tf.float32
        }
    except tf.errors.InvalidArgumentError as error:
        if "not finite" not in error.message:
            raise
        raise ValueError(
            "The outputs for an example image must be finite. Received: a model with NaN or "
            "infinite outputs"
        ) from None
    return {"inputs": inputs, **outputs}


def verify(folder, cases, tolerance):
    """Runs the signatures of a SavedModel in a child process; returns the largest relative
    difference by signature."""
    from keras_vit import files

    with tempfile.TemporaryDirectory() as case_folder:
        for name, case in cases.items():
            os.mkdir(f"{case_folder}/{name}")
            for part, tensor in case.items():
                tf.io.write_file(f"{case_folder}/{name}/{part}", tf.io.serialize_tensor(tensor))
        try:
            # -P keeps this folder off `sys.path`. The GPUs are hidden because the parent process
            # already uses them.
            arguments = ["-P", __file__, folder, case_folder, tolerance]
            last_line = files.run_python(
                arguments, CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="2"
            )
        except ChildProcessError as error:
            raise SelfTestError(
                f"The verification of the export failed: {error}. See {folder}"
            ) from error
    return json.loads(last_line)


def _main(folder, cases, tolerance):
    loaded = tf.saved_model.load(folder)
    differences = {}
    for name in sorted(os.listdir(cases)):
        signature = loaded.signatures[name]
        (spec,) = signature.structured_input_signature[1].values()
        inputs = tf.io.parse_tensor(tf.io.read_file(f"{cases}/{name}/inputs"), spec.dtype)
        outputs = signature(**{spec.name: inputs})
        differences[name] = 0.0
        for output in sorted(set(os.listdir(f"{cases}/{name}")) - {"inputs"}):
            expected = tf.io.parse_tensor(tf.io.read_file(f"{cases}/{name}/{output}"), tf.float32)
            if outputs[output].shape != expected.shape:
                sys.exit(f"{name}: {output} has the shape {outputs[output].shape}")
            difference = _largest(outputs[output] - expected) / _scale_of(expected)
            if not difference <= tolerance:
                sys.exit(f"{name}: {output} differs by {difference:g}, more than {tolerance:g}")
            differences[name] = max(differences[name], difference)
    print(json.dumps(differences))


def _scale_of(outputs):
    """Returns the number to which differences between outputs are relative.

    It is the largest absolute output or, if that is below 1, ten times it, at most 1. This allows
    the small probabilities of many classes a larger relative difference, because it is the absolute
    difference of the logits.
    """
    largest = _largest(outputs)
    return max(largest, min(10 * largest, 1.0), 1e-30)


def _largest(outputs):
    return float(tf.reduce_max(tf.abs(outputs)))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
