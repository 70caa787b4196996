"""Reads the user's image files and predicts their classes."""

import re
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_vit import export, terminal
from keras_vit.commands import shared_flags
from keras_vit.data.options import Options
from keras_vit.data.sources.listing import IMAGE_ENDINGS, files_below, printable
from keras_vit.export.decoding import decoder_of
from keras_vit.export.dense_signatures import predicts_of
from keras_vit.export.signatures import ACTIVATIONS
from keras_vit.models.any_model import gives_probabilities, logits_activation_of
from keras_vit.plots import to_pictures, to_uint8


def find_images(sources):
    """Lists the given files, and the images in the given folders and subfolders, without hidden
    files and folders."""
    paths = []
    for source in map(Path, sources):
        if not source.exists():
            raise ValueError(f"The file or folder does not exist. Received: {printable(source)}")
        inside = [source]
        if source.is_dir():
            inside = sorted(source / name for name in files_below(str(source)))
        if not inside:
            raise ValueError(
                f"The folder contains no images ({', '.join(IMAGE_ENDINGS)}). Received: "
                f"{printable(source)}"
            )
        paths += inside
    return paths


def evenly_spaced(items, count):
    """Returns up to `count` items of a list, in order, from the first to the last."""
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, count).astype(int))]


class Classifier:
    """A classifier with its class names and a reader of image files.

    `details` come from `shared_flags.load_model`, and `class_names` is the value of
    `--class_names`.
    """

    def __init__(self, model, details, class_names=""):
        if predicts_of(model):
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
        details = shared_flags.with_class_names(details, class_names, model)
        self.class_names, decoder = names_and_decoder(model, details, activation)
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
        self.decoder = decoder
        # Trace a single graph, because eager calls would trace some functions again for every file.
        self._decode = tf.function(
            decoder.image, input_signature=[tf.TensorSpec((), tf.string)], autograph=False
        )

    def read(self, name, content):
        """Decodes a file; returns the model's input, float32 `(H, W, C)`, and a picture of it,
        uint8 `(H, W, 3)`."""
        image = decoded(self._decode, name, content)
        return image, to_uint8(to_pictures(image[None], self.decoder.preprocessing)[0])

    def read_all(self, paths):
        """Reads files as inputs of the model; prints the errors of unreadable files.

        Returns the images, float32 `(N, H, W, C)`, and their paths.
        """
        images = []
        readable = []
        for path in paths:
            try:
                images.append(self.read(printable(path), path.read_bytes())[0])
                readable.append(path)
            except (OSError, ValueError) as error:
                terminal.write(error, sys.stderr)
        if not images:
            raise ValueError(
                "At least one image must be readable; see the errors above. Received: "
                f"{len(paths)} files"
            )
        return np.stack(images), readable


def reader_of(model, details):
    """Returns an `ImageFileReader` with the preprocessing of a model and the settings of
    `details`."""
    settings = details.get("rounding"), details.get("exif"), max_megapixels_of(details)
    return ImageFileReader(decoder_of(model, *settings))


def decoded(decode, name, content):
    """Returns `decode(content)` as an array; the error for a bad file says what is wrong with the
    file `name`."""
    try:
        return decode(tf.constant(content)).numpy()
    except tf.errors.OpError as error:
        # The message of `images.checked` says why the file was refused, up to a semicolon.
        refused = re.search(r"assertion failed: \[\W*([^;\]]*)", error.message)
        reason = refused[1] if refused else "damaged"
        raise ValueError(f"{name} cannot be read: it is {reason}.") from error


def exit_if_unreadable(unreadable, paths):
    """Ends the command with code 1 if some of its files cannot be read."""
    if unreadable:
        terminal.write(f"{unreadable} of {len(paths)} files cannot be read", sys.stderr)
        sys.exit(1)


def names_and_decoder(model, details, activation=None):
    """Returns the class names of a model, and the `Decoder` of its image files; raises a
    `ValueError` if `details` do not fit the model."""
    return export.check(
        model,
        class_names=details.get("class_names"),
        signatures=("serving_default",),
        activation=activation,
        rounding=details.get("rounding"),
        exif=details.get("exif"),
        max_megapixels=max_megapixels_of(details),
    )


def max_megapixels_of(details):
    """Returns the maximum size of an image, as in the model's training."""
    return shared_flags.run_data(details).get("max_megapixels", Options.max_megapixels)
