"""A SavedModel that a server can be trusted with."""

import os
import re

import keras
import tensorflow as tf

from keras_vit.export import other_backends, versions
from keras_vit.export.beside import write_beside
from keras_vit.export.decoding import Decoder
from keras_vit.export.examples import example_files
from keras_vit.export.graph import write_graph
from keras_vit.export.model_card import model_card, write_card
from keras_vit.export.plain_copy import plain_copy
from keras_vit.export.probabilities import probabilities_of
from keras_vit.export.signatures import Served, make_signatures
from keras_vit.export.tested import SelfTestError, largest_differences, tolerance_of
from keras_vit.preprocessing import preprocessing_of


def saved_model(
    model,
    base_dir,
    *,
    version=None,
    name=None,
    class_names=None,
    signatures=("serving_default", "tensor"),
    precision="float32",
    activation="softmax",
    top=5,
    rounding="float",
    exif=False,
    max_megapixels=50.0,
    max_batch_size=512,
    recipe=None,
    metrics=None,
):
    """Writes a SavedModel to `<base_dir>/<version>`, the layout that TensorFlow Serving watches.

    Its signatures check their input's shape first, take batches of any size up to a bound, and give float32:

        `serving_default`: `image_bytes`, string (B,), image files, to `probabilities` (B, classes), `top_classes`,
            string (B, top), and `top_probabilities` (B, top). Decoding is bounded by the header, and images go
            through the model's own preprocessing (`keras_vit.preprocessing_of`).
        `tensor`: `images` (B, H, W, C) as the model expects them, in [-1, 1] for most, to `probabilities`.
        `classify`: `inputs`, string (B,), `tf.train.Example` with `image/encoded`, to `classes` and `scores` (B, top).

    Beside the graph are the labels, a warm-up file, a model card, the model itself for `export.load`, files for
    TensorFlow Serving's flags, and a README. Before the version gets its name, a process that imports only TensorFlow
    asks it and compares; if that fails the folder stays under another name, to be looked at.

    Args:
        model: a `keras.Model` from images to logits or probabilities `(B, classes)`, of any precision and strategy.
        base_dir: the folder of the model's versions, any path of `tf.io.gfile`; made if it is not there.
        version: a positive integer that is free, or None for the number after the largest there is.
        name: the model's name on the server, of letters, digits and `_.-`; None for the name of `base_dir`.
        class_names: the name of each class, in order, without line breaks; None to number them.
        signatures: some of "serving_default", "tensor" and "classify".
        precision: what the export computes in, "float32" or "bfloat16".
        activation: what makes probabilities of logits, "softmax", or "sigmoid" for a model trained with that loss.
        top: how many classes are named, best first, 1 or more.
        rounding: what a resize gives, "float" or "uint8"; as in the evaluation, see `data.Options`.
        exif: whether photographs are turned as their EXIF orientation says.
        max_megapixels: larger images are refused undecoded, in millions of pixels.
        max_batch_size: larger batches are refused, in images.
        recipe: how the model was trained, plain data for the card.
        metrics: what was measured of it, plain data for the card.

    Returns:
        The path that was written, a string.

    Raises:
        ValueError: an argument is out of range, the version exists, or the model cannot be served.
        SelfTestError: what was written does not answer as the model does.
    """
    base_dir = os.fspath(base_dir)
    name = name or re.sub(r"[^\w.-]", "_", os.path.basename(base_dir.rstrip("/"))) or "model"
    decoding = {"rounding": rounding, "exif": exif, "max_megapixels": max_megapixels}
    served = {
        "signatures": tuple(signatures), "precision": precision, "activation": activation,
        "max_batch_size": max_batch_size,
    }  # fmt: skip
    about = {"training": recipe or {}, "metrics": metrics or {}}
    for argument, value in (("top", top), ("max_batch_size", max_batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`{argument}` must be an integer of 1 or more. Received: {argument}={value!r}")
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"`name` must be of letters, digits and `_.-`, as in a URL. Received: name={name!r}")
    versions.check_version(base_dir, version)
    if keras.backend.backend() != "tensorflow":
        options = {"version": version, "name": name, "class_names": class_names, "top": top, **decoding, **served}
        return other_backends.saved_model(model, base_dir, {**options, "recipe": recipe, "metrics": metrics})

    copy = plain_copy(model, precision)
    image_shape = tuple(model.input_shape[1:])
    labels = _labels(class_names, model.output_shape[-1])
    preprocessing = None if served["signatures"] == ("tensor",) else preprocessing_of(model)

    def signatures_of(probabilities):
        decoder = Decoder(image_shape, preprocessing, **decoding) if preprocessing else None
        parts = Served(probabilities, image_shape, decoder, labels, min(top, len(labels)))
        return make_signatures(signatures, parts, max_batch_size)

    images = tf.TensorSpec((None, *image_shape), tf.float32)
    made = signatures_of(tf.function(probabilities_of(copy, activation), input_signature=[images], autograph=False))
    files = example_files(image_shape)
    card = model_card(copy, class_names=labels, preprocessing={"model": preprocessing, **decoding}, **served, **about)
    staged = versions.Staged(base_dir, version, kept_after=SelfTestError)
    with staged as folder:
        write_graph(folder, copy, {key: (signature.answer, signature.spec) for key, signature in made.items()})
        write_beside(folder, name=name, model=model, card=card, signatures=made, files=files)
        tolerance = tolerance_of(model, precision)
        cases = {
            key: _case(signature, files)
            for key, signature in signatures_of(probabilities_of(model, activation)).items()
        }
        differences = largest_differences(folder, cases, tolerance)
        write_card(folder, {**card, "self_test": {"largest_differences": differences, "tolerance": tolerance}})
    return staged.path


def _case(signature, files):
    """What a signature is asked, and those of its answers that are numbers."""
    inputs = signature.example(files)
    answers = {name: answer for name, answer in signature.answer(inputs).items() if answer.dtype == tf.float32}
    return {"inputs": inputs, **answers}


def _labels(class_names, classes):
    labels = tuple(map(str, range(classes) if class_names is None else class_names))
    if len(labels) != classes or any("\n" in label for label in labels):
        raise ValueError(
            f"`class_names` must have a name without line breaks for each of {classes} classes. "
            f"Received: {len(labels)} names"
        )
    return labels
