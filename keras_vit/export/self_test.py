"""Asks a written SavedModel what it must know, in a process that imports TensorFlow only.

    python -P keras_vit/export/self_test.py VERSION CASES TOLERANCE

VERSION is the folder of the SavedModel. CASES has a folder for every signature: the tensor `inputs`, and by its name
each output that is compared. The last line of what is printed is the largest difference of each signature, as JSON. It
ends with a message and exit code 1 where an answer is wrong, and aborts where a server would.
"""

import json
import os
import sys

import tensorflow as tf


def main(folder, cases, tolerance):
    loaded = tf.saved_model.load(folder)
    with open(os.path.join(folder, "assets", "labels.txt"), encoding="utf-8") as file:
        labels = set(file.read().split("\n"))
    differences = {}
    for name in sorted(os.listdir(cases)):
        signature = loaded.signatures[name]
        (spec,) = signature.structured_input_signature[1].values()
        inputs = tf.io.parse_tensor(tf.io.read_file(f"{cases}/{name}/inputs"), spec.dtype)
        answer = signature(**{spec.name: inputs})
        for output, tensor in signature.structured_outputs.items():
            require(tensor.shape.rank > 0 and tensor.shape[0] is None, f"{name}: {output} has no free batch: {tensor}")
            require(tensor.dtype in (tf.float32, tf.string), f"{name}: {output} is {tensor.dtype}")
            if tensor.dtype == tf.string:
                unknown = {text.decode() for text in answer[output].numpy().ravel()} - labels
                require(not unknown, f"{name}: {output} has names that are no labels: {sorted(unknown)[:3]}")
        largest = 0.0
        for output in sorted(set(os.listdir(f"{cases}/{name}")) - {"inputs"}):
            expected = tf.io.parse_tensor(tf.io.read_file(f"{cases}/{name}/{output}"), tf.float32)
            require(answer[output].shape == expected.shape, f"{name}: {output} has the shape {answer[output].shape}")
            difference = float(tf.reduce_max(tf.abs(answer[output] - expected)))
            require(difference <= tolerance, f"{name}: {output} differs by {difference:g}, more than {tolerance:g}")
            largest = max(largest, difference)
        differences[name] = largest
        check_that_bad_input_is_refused(name, signature, spec, inputs)
    check_warmup(folder, len(differences))
    print(json.dumps(differences))


def check_that_bad_input_is_refused(name, signature, spec, inputs):
    """A wrong shape must be an error; unchecked, it ends the process."""
    bad = {"no batch": inputs[0], "another rank": inputs[..., None], "an empty batch": inputs[:0]}
    if inputs.shape.rank > 1:
        bad["a larger image"] = tf.concat([inputs, inputs[:, :1]], 1)
    for what, tensor in bad.items():
        try:
            signature(**{spec.name: tensor})
        except tf.errors.InvalidArgumentError:
            continue
        sys.exit(f"{name}: {what} was accepted, the shape {tensor.shape}")


def check_warmup(folder, signatures):
    """A warm-up file that is cut short counts as empty, without an error."""
    records = sum(1 for _ in tf.data.TFRecordDataset(f"{folder}/assets.extra/tf_serving_warmup_requests"))
    require(records == signatures, f"the warm-up has {records} records for {signatures} signatures")


def require(right, message):
    if not right:
        sys.exit(message)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
