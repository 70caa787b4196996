"""Compares a trained DINOv2 ViT-S/14 with transformers on two photographs, in several formats.

    python experiments/real/extract_dinov2.py --output=dinov2_small
    python experiments/real/agreement.py --model=dinov2_small
    KERAS_BACKEND=jax python experiments/real/agreement.py --model=dinov2_small

The reference is the class token and every sixteenth patch from transformers 5.23 in float32
(reference.npz). Prints the largest difference, divided by the largest absolute value of the
reference, and the lowest cosine similarity of a class token. SavedModel, ONNX and LiteRT require
the TensorFlow backend. ONNX also requires `pip install "keras_vit[onnx]"`.
"""

import tempfile
from pathlib import Path

import dinov2
import keras
import numpy as np
from absl import app, flags, logging
from PIL import Image

import keras_vit

FLAGS = flags.FLAGS
REFERENCE = Path(__file__).with_name("reference.npz")
PATCH_STEP = 16  # reference.npz has every sixteenth patch
SHAPE = (224, 224, 3)


def photographs():
    """Returns scikit-learn's two photographs, resized to uint8 `(2, 256, 256, 3)`."""
    from sklearn.datasets import load_sample_image

    pictures = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    return np.stack(
        [np.asarray(picture.resize((256, 256), Image.Resampling.BICUBIC)) for picture in pictures]
    )


def model_inputs(pictures):
    """Returns the center crops of 224 pixels, normalized, float32."""
    return dinov2.normalized(pictures[:, 16:240, 16:240])


def tokens_of(folder, images, dtype):
    """Returns all tokens after the last norm, `(2, 257, 384)`."""
    model = keras_vit.from_pretrained(folder, input_shape=SHAPE, include_top=False, dtype=dtype)
    return np.asarray(keras_vit.FeatureModel(model, tokens="all")(images)).astype("float32")


def split(tokens):
    """Returns the class token and the patches."""
    return tokens[:, 0], tokens[:, 1:]


def keras_file(model, images, folder):
    """Returns the class token and the patches after saving the model as `.keras` and loading it."""
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    return split(np.asarray(keras_vit.FeatureModel(loaded, tokens="all")(images)))


def saved_model(model, pictures, folder):
    """Returns the class token and the patches of a SavedModel that receives the photographs as PNG
    files."""
    outputs = dinov2.export_saved_model(model, folder)(pictures)
    patches = outputs["patches"]
    return outputs["representation"], patches.reshape(len(patches), -1, patches.shape[-1])


def exported(model, images, folder, kind):
    """Returns the class token and the patches of an ONNX or LiteRT file."""
    return split(dinov2.export_file(model, folder, kind, "all")(images))


def compared(token, patches, reference):
    """Returns the cells of a row: the differences of the class token and of the patches, and the
    lowest cosine."""

    def difference(ours, theirs):
        return np.abs(ours - theirs).max() / np.abs(theirs).max()

    expected = reference["class_token"]
    norms = np.linalg.norm(token, axis=1) * np.linalg.norm(expected, axis=1)
    cosine = ((token * expected).sum(1) / norms).min()
    patch_difference = difference(patches[:, ::PATCH_STEP], reference["patches"])
    return f"{difference(token, expected):.1e} | {patch_difference:.1e} | {cosine:.5f}"


def main(_):
    logging.set_verbosity(logging.ERROR)
    pictures = photographs()
    images = model_inputs(pictures)
    backend = keras.backend.backend()
    reference = np.load(REFERENCE)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model = keras_vit.from_pretrained(FLAGS.model, input_shape=SHAPE, include_top=False)
        rows = {
            f"{backend}, float32": lambda: split(tokens_of(FLAGS.model, images, "float32")),
            f"{backend}, bfloat16": lambda: split(tokens_of(FLAGS.model, images, "mixed_bfloat16")),
            f"{backend}, .keras file": lambda: keras_file(model, images, folder),
        }
        if backend == "tensorflow":
            rows |= {
                "SavedModel": lambda: saved_model(model, pictures, folder),
                "ONNX": lambda: exported(model, images, folder, "onnx"),
                "LiteRT": lambda: exported(model, images, folder, "litert"),
                "LiteRT int8": lambda: exported(model, images, folder, "litert_int8"),
            }
        print("| format | class token | patches | cosine of the class token |\n|---|---|---|---|")
        for name, compute in rows.items():
            print(f"| {name} | {compared(*compute(), reference)} |", flush=True)


if __name__ == "__main__":
    flags.DEFINE_string("model", "dinov2_small", "Folder that extract_dinov2.py wrote.")
    app.run(main)
