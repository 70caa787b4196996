"""Checks, without running a model, whether it can be exported as a SavedModel."""

from collections.abc import Sequence

import keras

from keras_vit.export import dense_signatures
from keras_vit.export.decoding import Decoder, decoder_of
from keras_vit.export.signatures import ACTIVATIONS, SIGNATURES
from keras_vit.layers.validation import check_choice
from keras_vit.models.any_model import (
    check_images_known,
    check_not_masked,
    find_vision_transformer,
    last_activation_of,
    logits_activation_of,
    output_shape_of,
)
from keras_vit.models.features import returns_features
from keras_vit.models.zero_shot import class_names_of


def default_signatures(model: keras.Model) -> tuple[str, ...]:
    """Returns the default signatures: "tensor", and "serving_default" for a model with at most 4
    input channels."""
    return ("serving_default", "tensor") if check_images_known(model)[-1] <= 4 else ("tensor",)


def check(
    model: keras.Model,
    *,
    class_names: Sequence[str] | None = None,
    signatures: Sequence[str] | None = None,
    activation: str | None = None,
    rounding: str | None = None,
    exif: bool | None = None,
    max_megapixels: float = 50.0,
) -> tuple[tuple[str, ...], Decoder | None]:
    """Checks, without running a model, whether `saved_model` can export it.

    For the arguments, see `saved_model`.

    Returns: `(labels, decoder)`: the class names, and the `Decoder` for image files, or None if no
        signature takes files.

    Raises:
        ValueError: an argument is invalid, or the model cannot be served.
    """
    signatures = default_signatures(model) if signatures is None else tuple(signatures)
    activation = logits_activation_of(model) if activation is None else activation
    check_choice("activation", activation, ACTIVATIONS)
    if not signatures or not set(signatures) <= set(SIGNATURES):
        raise ValueError(
            f"`signatures` must be one or more of {', '.join(SIGNATURES)}. Received: "
            f"signatures={signatures}"
        )
    _check_outputs(model, signatures)
    if {"features", "attention"} & set(signatures):
        vit = find_vision_transformer(model)
        if "attention" in signatures:
            vit.check_grid()
    labels = _labels_of(model, class_names)
    if signatures == ("tensor",):
        return labels, None
    return labels, decoder_of(model, rounding, exif, max_megapixels)


def _check_outputs(model, signatures):
    """Raises a `ValueError` if the outputs of a model cannot be served with these signatures."""
    check_images_known(model)
    check_not_masked(model)
    if returns_features(model) and not {"features", "attention"}.issuperset(signatures):
        raise ValueError(
            "A model that returns features has no probabilities to serve. Export the Vision "
            "Transformer with only the signatures `features` and `attention`, or write a LiteRT or "
            f"ONNX file. Received: model={model.name!r}, signatures={signatures}"
        )
    if dense_signatures.predicts_of(model):
        dense_signatures.check_signatures(model, signatures)
        return
    if len(output_shape_of(model)) != 2:
        raise ValueError(
            "The model must return logits or probabilities (B, classes) to be served. "
            f"Received: output_shape={model.output_shape}"
        )
    last_activation = last_activation_of(model)
    if last_activation not in ("linear", "softmax", "sigmoid"):
        raise ValueError(
            "The activation of the model's last layer must be none, softmax or sigmoid. "
            f"Received: activation={last_activation!r}"
        )


def _labels_of(model, class_names):
    """Returns the given class names as a tuple; for None, the model's, or else the numbers of the
    classes, of which depths and features have none."""
    has_classes = dense_signatures.predicts_of(model) != "depth" and not returns_features(model)
    classes = model.output_shape[-1] if has_classes else 0
    class_names = class_names_of(model) if class_names is None else class_names
    labels = tuple(map(str, range(classes) if class_names is None else class_names))
    if len(labels) != classes or any("\n" in label for label in labels):
        raise ValueError(
            f"`class_names` must be {classes} names without line breaks. Received: {len(labels)} "
            "names"
        )
    return labels
