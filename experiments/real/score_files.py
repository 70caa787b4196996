"""Evaluates an exported model on the 10,000 test images of Fashion-MNIST, encoded as PNG.

    python experiments/real/score_files.py --export=runs/fashion/export/1

The SavedModel's `serving_default` signature receives the encoded bytes, as it would from a serving
client. Prints the number of correctly classified images; `keras-vit evaluate --model=runs/fashion`
must report the same accuracy.
"""

import io
from pathlib import Path

import fashion_data
import numpy as np
from absl import app, flags
from PIL import Image

FLAGS = flags.FLAGS
BATCH = 100


def png(image):
    """Returns an image, encoded as PNG."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


def main(_):
    import tensorflow as tf

    if not Path(FLAGS.export, "saved_model.pb").is_file():
        raise ValueError(
            "--export must be a version folder of a SavedModel export. Received: "
            f"--export={FLAGS.export}"
        )
    images, labels = fashion_data.read(FLAGS.data, "t10k")
    signature = tf.saved_model.load(FLAGS.export).signatures["serving_default"]
    correct = 0
    for start in range(0, len(images), BATCH):
        files = tf.constant([png(image) for image in images[start : start + BATCH]])
        classes = signature(image_bytes=files)["probabilities"].numpy().argmax(1)
        correct += int(np.sum(classes == labels[start : start + BATCH]))
    print(
        f"{correct:,} of {len(images):,} images classified correctly: accuracy "
        f"{correct / len(images):.4f}"
    )


if __name__ == "__main__":
    flags.DEFINE_string("export", "runs/fashion/export/1", "Version folder of a SavedModel export.")
    flags.DEFINE_string("data", fashion_data.FOLDER, "Folder with the four IDX files.")
    app.run(main)
