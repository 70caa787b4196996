"""Reads the user's image files and predicts their classes."""

import re
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_vit import export
from keras_vit.commands import shared_flags
from keras_vit.data.options import Options
from keras_vit.data.sources.listing import IMAGE_ENDINGS, files_below, printable
from keras_vit.export.dense_signatures import predicts_of
from keras_vit.export.signatures import ACTIVATIONS
from keras_vit.models.any_model import gives_probabilities, logits_activation_of
from keras_vit.plots import to_pictures


def find_images(sources):
    """Lists the given files, and the images in the given folders and subfolders, without hidden
    files and folders."""
    paths = []
    for source in map(Path, sources):
        if not source.exists():
            raise ValueError(
                f"The file or folder does not exist. Received: {printable(str(source))}"
            )
        inside = [source]
        if source.is_dir():
            inside = sorted(source / name for name in files_below(str(source)))
            if not inside:
                endings = ", ".join(IMAGE_ENDINGS)
                raise ValueError(
                    f"The folder contains no images ({endings}). Received: {printable(str(source))}"
                )
        paths += inside
    return paths


class Classifier:
    """A classifier with its class names and a reader of image files.

    `details` come from `shared_flags.load_model`, and `class_names` is the value of
    `--class_names`.
    """

    def __init__(self, model, details, class_names="", takes_pixels=False):
        if predicts_of(model) and not takes_pixels:
            raise ValueError(
                "The model predicts pixels, not classes; see `keras-vit predict`, `demo` and "
                f"`evaluate`. Received: model={model.name!r}"
            )
        if not getattr(model, "arguments", {}).get("include_top", True):
            raise ValueError(
                "The model has no classes, because it is a backbone without a head; train a head "
                "with `keras-vit train --config.weights=...`. Received: "
                f"output_shape={model.output_shape}"
            )
        activation = details.get("activation") or logits_activation_of(model)
        names = details.get("class_names")
        if class_names:
            names = shared_flags.read_class_names(class_names, model.output_shape[-1])
        trained_on = (details.get("recipe") or {}).get("data") or {}
        self.class_names, decoder = export.check(
            model,
            class_names=names,
            signatures=("serving_default",),
            activation=activation,
            rounding=details.get("rounding"),
            exif=details.get("exif"),
            max_megapixels=trained_on.get("max_megapixels", Options.max_megapixels),
        )
        self.model = model
        self.reader = ImageFileReader(decoder)
        self._to_probabilities = (
            np.asarray if gives_probabilities(model) else ACTIVATIONS[activation]
        )

    def probabilities(self, images):
        """Returns probabilities `(B, classes)` of images, float32 `(B, H, W, C)`."""
        outputs = np.asarray(self.model.predict_on_batch(images), "float32")
        return np.asarray(self._to_probabilities(outputs))


class ImageFileReader:
    """Reads image files for a model."""

    def __init__(self, decoder):
        self._preprocessing = decoder.preprocessing
        # Trace a single graph, because eager calls would trace some functions again for every file.
        decode = tf.function(
            decoder.image, input_signature=[tf.TensorSpec((), tf.string)], autograph=False
        )
        self._decode = decode.get_concrete_function()

    def read(self, name, content):
        """Decodes a file; returns the model's input, float32 `(H, W, C)`, and a picture of it,
        uint8 `(H, W, 3)`."""
        try:
            image = self._decode(tf.constant(content)).numpy()
        except tf.errors.OpError as error:
            raise ValueError(f"{name} cannot be read: it is {refusal_in(error)}.") from error
        return image, np.uint8(np.rint(255 * to_pictures(image[None], self._preprocessing)[0]))


def refusal_in(error):
    """Returns what is wrong with a file, according to a `tf.errors.OpError`."""
    refused = re.search(r"assertion failed: \[\W*([^;\]]*)", error.message)
    return refused[1] if refused else "damaged"
