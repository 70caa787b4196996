"""Measures how much accuracy a trained DINOv2 ViT-S/14 loses in bfloat16, in int8 and in exported
formats.

    python experiments/real/low_precision.py --model=dinov2_small

`extract_dinov2.py` writes the model; Debian's package dataset-fashion-mnist provides the images. By
default, every format processes the first 2,000 images of each split, at 112 pixels. Prints a table
with the test accuracy of a linear probe and of a 20-nearest-neighbor classifier, and the share of
test images whose kNN class is the same as in float32.
"""

import io
import tempfile
from pathlib import Path

import fashion_data
import keras
import numpy as np
from absl import app, flags, logging
from fashion_data import CLASSES, SIZE
from PIL import Image

import keras_vit
from keras_vit import export
from keras_vit.evaluation import frozen
from keras_vit.export.litert_file import LITERT

FLAGS = flags.FLAGS
SHAPE = (SIZE, SIZE, 3)
BATCH = 50


def of_keras(folder, dtype):
    """Returns a function from images to class tokens, computed by Keras in the given dtype."""
    model = keras_vit.from_pretrained(folder, input_shape=SHAPE, include_top=False, dtype=dtype)
    return lambda pictures: keras_vit.features(
        model, fashion_data.normalized(pictures), batch_size=len(pictures)
    )


def of_saved_model(model, folder):
    """Returns a function from images to class tokens, computed by a SavedModel from PNG files."""
    import tensorflow as tf

    path = export.saved_model(model, folder / "saved_model", signatures=["features"])
    signature = tf.saved_model.load(path).signatures["features"]
    # The export resizes to 8/7 of the model's size and takes the center crop, so pad each side by
    # the border that the crop removes.
    border = SIZE // 14

    def compute(pictures):
        files = []
        for picture in np.pad(pictures, ((0, 0), (border, border), (border, border), (0, 0))):
            file = io.BytesIO()
            Image.fromarray(picture).save(file, "png")
            files.append(file.getvalue())
        return signature(image_bytes=tf.constant(files))["representation"].numpy()

    return compute


def of_file(model, folder, kind):
    """Returns a function from images to class tokens, computed by an ONNX or a LiteRT file."""
    inputs = keras.Input(SHAPE)
    features = keras.Model(inputs, keras_vit.FeatureModel(model, tokens="class")(inputs))
    if kind == "onnx":
        import onnxruntime

        export.onnx(features, folder / "model.onnx")
        session = onnxruntime.InferenceSession(
            folder / "model.onnx", providers=["CPUExecutionProvider"]
        )
        return lambda pictures: session.run(None, {"images": fashion_data.normalized(pictures)})[0]
    export.litert(features, folder / f"{kind}.tflite", quantization=kind)
    run = LITERT.runner((folder / f"{kind}.tflite").read_bytes())
    return lambda pictures: run(fashion_data.normalized(pictures))


def first_images(split):
    """Returns the first `--count` images of a split, enlarged, and their labels."""
    images, labels = fashion_data.read(FLAGS.data, split)
    return fashion_data.enlarged(images[: FLAGS.count]), labels[: FLAGS.count]


def in_batches(compute, pictures):
    return np.concatenate(
        [compute(pictures[start : start + BATCH]) for start in range(0, len(pictures), BATCH)]
    )


def main(_):
    logging.set_verbosity(logging.ERROR)
    fashion_data.check_model(FLAGS.model)
    images, labels = first_images("train")
    test_images, test_labels = first_images("t10k")
    model = keras_vit.from_pretrained(FLAGS.model, input_shape=SHAPE, include_top=False)
    print(
        "| format | linear probe | 20 neighbors | kNN agreement with float32 |\n|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        formats = {
            "float32": lambda: of_keras(FLAGS.model, "float32"),
            "bfloat16": lambda: of_keras(FLAGS.model, "mixed_bfloat16"),
            "SavedModel, from PNG files": lambda: of_saved_model(model, folder),
            "ONNX": lambda: of_file(model, folder, "onnx"),
            "LiteRT, float32": lambda: of_file(model, folder, "none"),
            "LiteRT, int8": lambda: of_file(model, folder, "int8"),
        }
        reference = None
        for name, make in formats.items():
            compute = make()
            features = in_batches(compute, images)
            test_features = in_batches(compute, test_images)
            probe = frozen.fit_and_score(features, labels, test_features, test_labels)["accuracy"]
            classes = frozen.nearest_classes(features, labels, test_features, CLASSES)
            reference = classes if reference is None else reference
            neighbors = np.mean(classes == test_labels)
            agree = np.mean(classes == reference)
            print(f"| {name} | {probe:.4f} | {neighbors:.4f} | {agree:.4f} |", flush=True)


if __name__ == "__main__":
    flags.DEFINE_string("model", "dinov2_small", "Folder that extract_dinov2.py wrote.")
    flags.DEFINE_string("data", fashion_data.FOLDER, "Folder of the four IDX files.")
    flags.DEFINE_integer("count", 2000, "Number of images per split.", lower_bound=20)
    app.run(main)
