"""Exports a SavedModel for a server and verifies it before publishing it under a version number."""

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_vit import files
from keras_vit.export import versions
from keras_vit.export.assets import model_card, write_assets
from keras_vit.export.checks import check, default_signatures
from keras_vit.export.devices import chosen_device
from keras_vit.export.graph import inference_copy, write_graph
from keras_vit.export.signatures import ServedModel, build_signatures
from keras_vit.export.verification import (
    SelfTestError,
    example_files,
    tolerance_of,
    verification_case,
    verify,
)
from keras_vit.layers.validation import check_positive_int
from keras_vit.models.any_model import logits_activation_of, weights_digest


def saved_model(
    model: keras.Model,
    base_dir: str | os.PathLike,
    *,
    version: int | None = None,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    signatures: Sequence[str] | None = None,
    precision: str = "float32",
    device: str | None = None,
    activation: str | None = None,
    top: int = 5,
    rounding: str | None = None,
    exif: bool | None = None,
    max_megapixels: float = 50.0,
    max_batch_size: int = 512,
    recipe: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> str:
    """Writes a SavedModel to `<base_dir>/<version>`, the layout that TensorFlow Serving watches.

    Each signature checks the shape of its input, accepts batches of 1 to `max_batch_size` and
    returns numbers as float32. The signatures are:

        `serving_default`: maps image files, `image_bytes`, string (B,), to `probabilities` (B,
            classes), `top_classes`, string (B, top), and `top_probabilities` (B, top). The
            signature checks the files' headers before decoding and applies the model's
            preprocessing (`keras_vit.preprocessing_of`).
        `tensor`: maps preprocessed `images` (B, H, W, C), which are in [-1, 1] for most models, to
            `probabilities`.
        `classify`: maps `inputs`, string (B,), each a `tf.train.Example` with the feature
            `image/encoded`, to `classes` and `scores` (B, top).
        `features`: maps `image_bytes` to `representation` (B, F), the input of the model's head,
            and `patches` (B, rows, columns, D), the patch tokens after the last norm. For images of
            any size, `patches` are (B, N, D).
        `attention`: maps `image_bytes` to `attention` (B, H, W), the nonnegative attention rollout
            at image size.

    For a model that predicts pixels, the first two return `masks`, uint8 (B, H, W), the class of
    each pixel at the model's image size, and `confidence`, its probability; or `depths` (B, H, W).

    The folder also contains class names, warm-up requests, an example image, a model card, the
    model for `export.load`, and a README. Before the version is published, a process that does not
    import keras_vit compares the SavedModel's outputs with the model's. If they differ by more than
    a tolerance, the folder is kept as `partial-...` for inspection.

    Args:
        model: a `keras.Model` from images to logits or probabilities `(B, classes)`, of any
            precision and strategy. A Vision Transformer without a head has only the signatures
            "features" and "attention".
        base_dir: folder of the model's versions, any path of `tf.io.gfile`; created if it does not
            exist.
        version: a positive integer that is not in use, or None for the number after the largest
            version.
        name: name of the model on the server, of letters, digits and `_.-`; None for a name based
            on `base_dir`.
        class_names: name of each class, in order, without line breaks. None uses the names of a
            zero-shot model, or the class numbers for other models.
        signatures: names of signatures: "serving_default", "tensor", "classify", for Vision
            Transformers also "features" and, for images of one size, "attention"; None for
            `default_signatures(model)`.
        precision: compute precision, "float32" or "bfloat16".
        device: kind of device that the SavedModel is for: "cpu", whose forms of LayerNorm and
            softmax are faster on CPUs and change the outputs only by rounding, or "any"; None for
            "cpu" if no GPU or TPU is found on this machine.
        activation: function from logits to probabilities, "softmax" or "sigmoid"; None for the
            activation that the model records, "softmax" by default.
        top: number of top classes, 1 or more.
        rounding: dtype of resized images, "float" or "uint8"; None for the model's setting.
        exif: whether to rotate images by their EXIF orientation; None for the model's setting.
        max_megapixels: maximum size of an image to decode, in millions of pixels.
        max_batch_size: maximum number of images in a batch.
        recipe: JSON-serializable dict that describes how the model was trained, for the card.
        metrics: JSON-serializable dict with the model's metrics, for the card.

    Returns:
        The path of the written version, a string.

    Raises:
        ValueError: an argument is invalid, the version exists, or the model cannot be served.
        SelfTestError: the outputs of the SavedModel differ from the model's. On JAX, this is a
            `ValueError` instead.
    """
    device = chosen_device(device)
    given = {name: value for name, value in locals().items() if name not in ("model", "base_dir")}
    base_dir = os.fspath(base_dir)
    folder_name = os.path.basename(os.path.abspath(base_dir))
    name = name or re.sub(r"[^\w.-]", "_", folder_name) or "model"
    signatures = default_signatures(model) if signatures is None else tuple(signatures)
    activation = logits_activation_of(model) if activation is None else activation
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(
            "`name` must consist of letters, digits and `_.-`, to fit in a URL. Received: "
            f"name={name!r}"
        )
    check_positive_int("top", top)
    check_positive_int("max_batch_size", max_batch_size)
    versions.check_version(base_dir, version)
    labels, decoder = check(
        model,
        class_names=class_names,
        signatures=signatures,
        activation=activation,
        rounding=rounding,
        exif=exif,
        max_megapixels=max_megapixels,
    )
    given |= {"class_names": labels, "signatures": signatures}
    _check_serializable(given)
    if keras.backend.backend() != "tensorflow":
        return _by_tensorflow(model, base_dir, given)

    # The served signatures are graphs of an inference copy. The expected ones run the model itself
    # eagerly.
    copy = inference_copy(model, precision, device)
    served = ServedModel(copy, activation, decoder, labels, top)
    written = build_signatures(signatures, served, max_batch_size)
    eager = dataclasses.replace(served, model=model, in_graphs=False)
    expected = build_signatures(signatures, eager, max_batch_size)
    image_files = example_files(model.input_shape[1:])
    settings: dict[str, Any] = {"rounding": rounding, "exif": exif}
    if decoder is not None:
        preprocessing = decoder.preprocessing.to_config()
        settings = {name: preprocessing[name] for name in settings} | {"model": preprocessing}
    card = model_card(
        copy,
        weights_sha256=weights_digest(model),
        class_names=labels,
        signatures=signatures,
        precision=precision,
        device=device,
        activation=activation,
        max_batch_size=max_batch_size,
        preprocessing={"model": None, **settings, "max_megapixels": max_megapixels},
        training=recipe or {},
        metrics=metrics or {},
    )
    graphs = {key: (signature.function, signature.spec) for key, signature in written.items()}
    with versions.staging_dir(base_dir, kept_after=SelfTestError) as folder:
        write_graph(folder, copy, graphs)
        write_assets(
            folder, name=name, model=model, card=card, signatures=written, image_files=image_files
        )
        tolerance = tolerance_of(model, precision)
        cases = {
            key: verification_case(signature, image_files) for key, signature in expected.items()
        }
        differences = verify(folder, cases, tolerance)
        card["self_test"] = {"largest_differences": differences, "tolerance": tolerance}
        files.write_json(os.path.join(folder, versions.CARD), card)
        return versions.publish(folder, base_dir, version)


def _check_serializable(arguments):
    """Raises a `ValueError` unless a card can store the arguments of an export."""
    try:
        json.dumps(arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`recipe`, `metrics` and all other arguments must be JSON-serializable, with numbers "
            f"of Python instead of NumPy ({error}). Received: metrics={arguments['metrics']!r}"
        ) from error


_EXPORT_BY_TENSORFLOW = """
import sys
import keras_vit
from keras_vit import files
base_dir, options = files.read_json(f"{sys.argv[1]}/options.json")
model = keras_vit.load_keras_file(f"{sys.argv[1]}/model.keras", compile=False)
print(keras_vit.export.saved_model(model, base_dir, **options))
"""


def _by_tensorflow(model, base_dir, options):
    """Exports in a TensorFlow child process, because graphs converted from JAX recompile for each
    batch size."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        target = base_dir if files.is_remote(base_dir) else os.path.abspath(base_dir)
        files.write_json(f"{folder}/options.json", [target, options])
        try:
            return files.run_python(
                ["-c", _EXPORT_BY_TENSORFLOW, folder],
                KERAS_BACKEND="tensorflow",
                TF_CPP_MIN_LOG_LEVEL="2",
            )
        except ChildProcessError as error:
            raise ValueError(
                "The child process with the TensorFlow backend could not export the model: "
                f"{error} Received: backend={keras.backend.backend()!r}"
            ) from error
