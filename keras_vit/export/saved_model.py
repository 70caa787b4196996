"""A SavedModel that a server can be trusted with."""

import os
import shutil
import tempfile
from pathlib import Path

import keras
import tensorflow as tf


def saved_model(model, base_dir, version=1):
    """Writes a SavedModel to `<base_dir>/<version>`, the layout that TensorFlow Serving watches.

    Its one signature is `tensor`: `images`, float32 `(B, H, W, C)` in [-1, 1], to `probabilities`, float32
    `(B, classes)`.

    Args:
        model: a `keras.Model` from images to logits.
        base_dir: the folder of the model's versions; made if it is not there.
        version: a positive integer.

    Returns:
        The path that was written.

    Raises:
        ValueError: that version exists, or is no positive integer.
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ValueError(f"`version` must be an integer of 1 or more. Received: version={version!r}")
    target = Path(base_dir) / str(version)
    if target.exists():
        raise ValueError(f"An exported version is never overwritten. Received: {target}, which exists")
    spec = tf.TensorSpec((None, *model.input_shape[1:]), tf.float32, name="images")

    def tensor(images):
        # A signature call does not check its input, and a wrong rank would abort the process in the convolution.
        images = tf.ensure_shape(images, spec.shape)
        logits = tf.cast(model(images, training=False), tf.float32)
        return {"probabilities": tf.nn.softmax(logits)}

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("tensor", tensor, input_signature=[spec])
    target.parent.mkdir(parents=True, exist_ok=True)
    # A server takes the largest number it sees in the folder: what is not finished must not be a number.
    partial = tempfile.mkdtemp(prefix=f"partial-{version}-", dir=target.parent)
    try:
        archive.write_out(partial, verbose=False)
        os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target
