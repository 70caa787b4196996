"""Normalizes images for a model, and checks the values and channels of images."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.preprocessing.models import preprocessing_of
from keras_vit.preprocessing.settings import Preprocessing


def preprocess_input(
    images: np.ndarray | keras.KerasTensor, model: keras.Model | None = None
) -> keras.KerasTensor:
    """Normalizes pixel values for a model: [0, 255] to [-1, 1] by default.

    Args:
        images: `(B, H, W, C)` or `(H, W, C)`, any dtype, already resized to the model's input size,
            with values in [0, 255] ([0, 65535] if the model's `bit_depth` is 16). For a model of
            images of any size, a list of images `(H, W, C)`, which are resized and packed into a
            batch.
        model: model that will receive the images. Its mean and std are used; None normalizes to
            [-1, 1].

    Returns:
        A float32 tensor with the shape of `images`, or of the model's batches if it takes images of
        any size.

    Raises:
        ValueError: `preprocessing_of` rejects the model, the images do not have rank 3 or 4, their
            sizes differ although the model takes images of one size, their number of channels
            differs from the model's, or their values are not pixel values: some are negative
            (already preprocessed), NaN or too large, or all are at most 1 and some are fractions.

    Reference: `(x - 127.5) / 127.5` in `vit_jax`
        (https://github.com/google-research/vision_transformer).
    """
    preprocessing = Preprocessing() if model is None else preprocessing_of(model)
    white = 2**preprocessing.bit_depth - 1
    if model is not None and not preprocessing.layout.has_one_size:
        images = [np.asarray(image) for image in images]
        for image in images:
            if image.ndim == 3:  # `prepare` refuses others
                _check_pixels(ops.convert_to_tensor(image), white)
        return preprocessing.layout.prepare(images, preprocessing, model.input_shape[1:])
    if isinstance(images, list) and len({np.shape(image) for image in images}) > 1:
        raise ValueError(
            "`images` must all be resized to the model's input size, because the model takes "
            "images of one size. "
            f"Received: shapes={[np.shape(image) for image in images]}"
        )
    images = ops.cast(ops.convert_to_tensor(images), "float32")
    if len(images.shape) not in (3, 4):
        raise ValueError(
            "`images` must have shape (B, H, W, C) or (H, W, C). Received: "
            f"shape={tuple(images.shape)}"
        )
    _check_pixels(images, white)
    if model is not None:
        check_channels(images.shape, preprocessing.channels)
    return preprocessing.normalized(images)


def check_channels(shape: tuple, channels: int) -> None:
    """Raises a `ValueError` unless images of this shape have `channels` channels."""
    if shape[-1] is None or shape[-1] == channels:
        return
    hint = ""
    if (shape[-1], channels) == (1, 3):
        hint = "; np.repeat(images, 3, axis=-1) turns gray images into RGB"
    raise ValueError(
        f"`images` must have {channels} channels{hint}. Received: images of shape {tuple(shape)}"
    )


def _check_pixels(images, white):
    values = concrete_values(images)
    if values is None or not values.size:
        return
    lowest = values.min()
    highest = values.max()
    are_fractions = highest <= 1 and (values != np.floor(values)).any()
    # A resize may round up. NaN is not in range.
    in_range = lowest >= 0 and highest <= white + 0.5
    if are_fractions or not in_range:
        raise ValueError(
            f"`images` must have pixel values in [0, {white}]: multiply values in [0, 1] by "
            f"{white}, pass preprocessed images to the model directly, and use a model whose "
            f"`preprocessing` has bit_depth=16 for 16-bit values. Received: values in [{lowest:g}, "
            f"{highest:g}]"
        )


def concrete_values(images: Any) -> np.ndarray | None:
    """Returns the values of a tensor as a numpy array, or None during tracing."""
    if keras.backend.backend() == "tensorflow":
        is_concrete = hasattr(images, "numpy")
    else:
        is_concrete = not isinstance(images, keras.KerasTensor) and "Tracer" not in str(
            type(images)
        )
    return ops.convert_to_numpy(images) if is_concrete else None


def range_error(values: np.ndarray, preprocessing: Preprocessing) -> str | None:
    """Returns the text of a warning if the values of a model's input images are implausible, else
    None."""
    white = 2**preprocessing.bit_depth - 1
    mean = np.array(preprocessing.mean)
    std = np.array(preprocessing.std)
    pixels = values * std + mean
    largest = np.abs(pixels).max()
    if largest > 5 * white:
        problem = "look like pixel values"
    elif largest < 4 and np.abs(pixels - np.rint(pixels)).max() > 0.01:
        problem = "look as if they were preprocessed twice"
    else:
        return None
    return (
        f"The images {problem}: the model expects values in [{(-mean / std).min():.3g}, "
        f"{((white - mean) / std).max():.3g}]; `keras_vit.preprocess_input(images, model)` "
        f"converts pixel values. Received: values in [{values.min():g}, {values.max():g}]"
    )
