"""Calls the signatures of an export with unusual and malformed tensors, without importing
keras_vit.

    python call_signatures.py EXPORT RESULTS.json

Writes `{kind: {name: probabilities, or null if the call raised an error}}`. An aborted process
writes no file.
"""

import json
import sys

import malformed
import tensorflow as tf


def call(signature, name, values):
    try:
        return signature(**{name: tf.constant(values)})["probabilities"].numpy().tolist()
    except (tf.errors.OpError, ValueError, TypeError):
        return None


def main(export, results_path):
    signatures = tf.saved_model.load(export).signatures
    images = {**malformed.ODD_IMAGES, **malformed.BAD_IMAGES}
    by_bytes = signatures["serving_default"]
    by_tensor = signatures["tensor"]
    ragged = {"of several depths": [[1.0], 2.0], "of several lengths": [[1.0, 2.0], [3.0]]}
    results = {
        "images": {
            name: call(by_bytes, "image_bytes", tf.constant(files, tf.string))
            for name, files in images.items()
        },
        "shapes": {
            "files in a list": call(by_bytes, "image_bytes", [[malformed.PNG]]),
            "a file": call(by_bytes, "image_bytes", malformed.PNG),
            "numbers": call(by_bytes, "image_bytes", [1, 2]),
            "another input": call(by_bytes, "images", [malformed.PNG]),
            **{name: call(by_tensor, "images", values) for name, values in ragged.items()},
        },
        "arrays": {
            name: call(by_tensor, "images", values) for name, values in malformed.ARRAYS.items()
        },
    }
    with open(results_path, "w") as file:
        json.dump(results, file)
    assert "keras_vit" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
