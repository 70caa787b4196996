"""Measures how much accuracy a trained DINOv2 ViT-S/14 loses in bfloat16, in int8 and in exported
formats.

    python experiments/real/low_precision.py --model=dinov2_small

`extract_dinov2.py` writes the model; Debian's package dataset-fashion-mnist provides the images. By
default, every format processes the first 2,000 images of each split, at 112 pixels. Prints a table
with the test accuracy of a linear probe and of a 20-nearest-neighbor classifier, and the share of
test images whose kNN class is the same as in float32.
"""

import tempfile
from pathlib import Path

import dinov2
import fashion_data
import numpy as np
from absl import app, flags, logging

import keras_vit
from keras_vit.evaluation import frozen

FLAGS = flags.FLAGS
SHAPE = (fashion_data.SIZE, fashion_data.SIZE, 3)
BATCH = 50


def run_keras(folder, dtype):
    """Returns a function from pictures to class tokens, computed by Keras in the given dtype."""
    model = keras_vit.from_pretrained(folder, input_shape=SHAPE, include_top=False, dtype=dtype)
    return lambda pictures: keras_vit.features(
        model, dinov2.normalized(pictures), batch_size=len(pictures)
    )


def run_saved_model(model, folder):
    """Returns a function from pictures to class tokens, computed by a SavedModel from PNG files."""
    compute = dinov2.export_saved_model(model, folder)
    # The export resizes to 8/7 of the model's size and takes the center crop, so pad each side by
    # the border that the crop removes.
    border = fashion_data.SIZE // 14
    padding = ((0, 0), (border, border), (border, border), (0, 0))
    return lambda pictures: compute(np.pad(pictures, padding))["representation"]


def run_file(model, folder, kind):
    """Returns a function from pictures to class tokens, computed by an ONNX or a LiteRT file."""
    compute = dinov2.export_file(model, folder, kind, "class")
    return lambda pictures: compute(dinov2.normalized(pictures))


def first_images(split):
    """Returns the first `--count` images of a split, enlarged, and their labels."""
    images, labels = fashion_data.read(FLAGS.data, split)
    return fashion_data.enlarged(images[: FLAGS.count]), labels[: FLAGS.count]


def features_of(compute, pictures):
    """Returns the class tokens of all pictures; `compute` gets them in batches."""
    return np.concatenate(
        [compute(pictures[start : start + BATCH]) for start in range(0, len(pictures), BATCH)]
    )


def main(_):
    logging.set_verbosity(logging.ERROR)
    dinov2.check_model(FLAGS.model)
    images, labels = first_images("train")
    test_images, test_labels = first_images("t10k")
    model = keras_vit.from_pretrained(FLAGS.model, input_shape=SHAPE, include_top=False)
    print(
        "| format | linear probe | 20 neighbors | kNN agreement with float32 |\n|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        formats = {
            "float32": lambda: run_keras(FLAGS.model, "float32"),
            "bfloat16": lambda: run_keras(FLAGS.model, "mixed_bfloat16"),
            "SavedModel, from PNG files": lambda: run_saved_model(model, folder),
            "ONNX": lambda: run_file(model, folder, "onnx"),
            "LiteRT, float32": lambda: run_file(model, folder, "litert"),
            "LiteRT, int8": lambda: run_file(model, folder, "litert_int8"),
        }
        float32_classes = None
        for name, build in formats.items():
            compute = build()
            features = features_of(compute, images)
            test_features = features_of(compute, test_images)
            probe = frozen.fit_and_score(features, labels, test_features, test_labels)["accuracy"]
            classes = frozen.nearest_classes(features, labels, test_features, fashion_data.CLASSES)
            float32_classes = classes if float32_classes is None else float32_classes
            neighbors = np.mean(classes == test_labels)
            agreement = np.mean(classes == float32_classes)
            print(f"| {name} | {probe:.4f} | {neighbors:.4f} | {agreement:.4f} |", flush=True)


if __name__ == "__main__":
    flags.DEFINE_string("model", "dinov2_small", "Folder that extract_dinov2.py wrote.")
    flags.DEFINE_string("data", fashion_data.FOLDER, "Folder of the four IDX files.")
    flags.DEFINE_integer("count", 2000, "Number of images per split.", lower_bound=20)
    app.run(main)
