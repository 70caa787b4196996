"""Calls the signatures of an export with every malformed tensor, in a process that knows TensorFlow only.

    python call_signatures.py EXPORT ANSWERS.json

The answers are `{kind: {name: probabilities, or null where it was refused}}`; a process that aborts writes none.
"""

import json
import sys

import malformed
import tensorflow as tf


def ask(signature, name, values):
    try:
        return signature(**{name: tf.constant(values)})["probabilities"].numpy().tolist()
    except (tf.errors.OpError, ValueError, TypeError):  # the last two are tf.constant's and the signature's own
        return None


def main(export, answers):
    signatures = tf.saved_model.load(export).signatures
    images = {**malformed.ODD_IMAGES, **malformed.BAD_IMAGES}
    by_bytes, by_tensor = signatures["serving_default"], signatures["tensor"]
    ragged = {"of several depths": [[1.0], 2.0], "of several lengths": [[1.0, 2.0], [3.0]]}
    results = {
        "images": {name: ask(by_bytes, "image_bytes", tf.constant(files, tf.string)) for name, files in images.items()},
        "shapes": {
            "files in a list": ask(by_bytes, "image_bytes", [[malformed.PNG]]),
            "a file": ask(by_bytes, "image_bytes", malformed.PNG),
            "numbers": ask(by_bytes, "image_bytes", [1, 2]),
            "another input": ask(by_bytes, "images", [malformed.PNG]),
            **{name: ask(by_tensor, "images", values) for name, values in ragged.items()},
        },
        "arrays": {name: ask(by_tensor, "images", values) for name, values in malformed.ARRAYS.items()},
    }
    with open(answers, "w") as file:
        json.dump(results, file)
    assert "keras_vit" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
