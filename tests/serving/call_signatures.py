"""Calls the signatures of an export with unusual and malformed tensors, without importing
keras_vit.

    python call_signatures.py EXPORT OUTPUTS.json

Writes `{kind: {name: probabilities, or null if the call raised an error}}`. An aborted process
writes no file.
"""

import json
import sys

import malformed
import tensorflow as tf


def call(signature, argument, value):
    """Returns the probabilities of a signature, or None if it raises an error."""
    try:
        return signature(**{argument: tf.constant(value)})["probabilities"].numpy().tolist()
    except (tf.errors.OpError, ValueError, TypeError):
        return None


def call_with_images(signature):
    images = {**malformed.ODD_IMAGES, **malformed.BAD_IMAGES}
    return {
        name: call(signature, "image_bytes", tf.constant(files, tf.string))
        for name, files in images.items()
    }


def call_with_arrays(signature):
    return {name: call(signature, "images", values) for name, values in malformed.ARRAYS.items()}


def call_with_malformed_arguments(signatures):
    of_bytes = signatures["serving_default"]
    of_tensor = signatures["tensor"]
    return {
        "files in a list": call(of_bytes, "image_bytes", [[malformed.PNG]]),
        "a file": call(of_bytes, "image_bytes", malformed.PNG),
        "numbers": call(of_bytes, "image_bytes", [1, 2]),
        "another input": call(of_bytes, "images", [malformed.PNG]),
        "lists of several depths": call(of_tensor, "images", [[1.0], 2.0]),
        "lists of several lengths": call(of_tensor, "images", [[1.0, 2.0], [3.0]]),
    }


def main(export, outputs_path):
    signatures = tf.saved_model.load(export).signatures
    outputs = {
        "images": call_with_images(signatures["serving_default"]),
        "arrays": call_with_arrays(signatures["tensor"]),
        "arguments": call_with_malformed_arguments(signatures),
    }
    with open(outputs_path, "w") as file:
        json.dump(outputs, file)
    assert "keras_vit" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
