"""Finds the preprocessing that a model declares."""

from typing import Any

import keras

from keras_vit.preprocessing.settings import Preprocessing


def preprocessing_of(model: keras.Model) -> Preprocessing:
    """Returns the `Preprocessing` that a model expects for its images.

    The model's `InputPreprocessing` layer keeps the preprocessing in its config, which survives
    saving, `from_config`, `clone_model` and nesting in another model. A model that scales images
    itself must start with an `InputPreprocessing` layer that declares the expected input.

    Raises:
        ValueError: the model has no such layer, or changes images before this layer.
    """
    preprocessing = find_preprocessing(model)
    if preprocessing is None:
        raise ValueError(
            f"`model` must have an `InputPreprocessing` layer. Received: model={model.name!r}"
        )
    return preprocessing


def find_preprocessing(model: keras.Model) -> Preprocessing | None:
    """Returns the same as `preprocessing_of`, or None if the model has no `InputPreprocessing`
    layer.

    Raises:
        ValueError: the model changes images before its `InputPreprocessing` layer, or the model has
            no such layer but rescales or normalizes images.
    """
    before: list[Any] = []
    for operation in _operations_of(model):
        if type(operation).__name__ == "InputPreprocessing":
            _check_unchanged(model, before)
            return Preprocessing.from_config(operation.get_config()["preprocessing"])
        before.append(operation)
    preparing = keras.layers.Rescaling | keras.layers.Normalization
    _check_unchanged(model, [operation for operation in before if isinstance(operation, preparing)])
    return None


# Type name prefixes of layers that keep the range of pixel values; Keras' random layers do nothing
# at inference.
_UNCHANGING = (
    "InputLayer",
    "Identity",
    "Dropout",
    "SpatialDropout2D",
    "Resizing",
    "CenterCrop",
    "Cast",
    "Random",
)


def _check_unchanged(model, operations):
    for operation in operations:
        kind = type(operation).__name__
        if not kind.startswith(_UNCHANGING):
            raise ValueError(
                f"`model` changes images in {operation.name!r} ({kind}) without declaring the "
                "range that it expects: add a keras_vit.layers.InputPreprocessing before it, for "
                "example with keras_vit.Preprocessing(mean=(0, 0, 0), std=(1, 1, 1)) for pixel "
                f"values in [0, 255]. Received: model={model.name!r}"
            )


def _operations_of(model):
    """Yields the operations of a model and its nested models in the order of computation."""
    for operation in getattr(model, "operations", model.layers):
        yield from _operations_of(operation) if isinstance(operation, keras.Model) else [operation]
