"""The preprocessing of a model's input images, and functions that apply and check it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

LIBRARIES = ("vit_jax", "torchvision", "transformers")


class Layout:
    """How the images of a model form a batch; by default, images of one size, `(B, H, W, C)`.

    Attributes:
        has_one_size: whether all images of a batch have the same size and patch grid.
    """

    has_one_size = True

    def prepare(self, images: Any, preprocessing: "Preprocessing", shape: tuple) -> Any:
        """Normalizes pixel values `(..., H, W, C)` in [0, white]; `shape` is that of a model's
        image."""
        mean = preprocessing.mean
        std = preprocessing.std
        if len(set(zip(mean, std))) == 1:
            return (images - mean[0]) / std[0]
        return (images - ops.convert_to_tensor(mean, "float32")) / ops.convert_to_tensor(
            std, "float32"
        )

    def pixels(self, batch: Any) -> Any:
        """Returns the part of a batch that consists of pixels."""
        return batch

    def pictures(self, batch: np.ndarray) -> np.ndarray:
        """Returns the images of a batch, `(B, H, W, C)`."""
        return batch


LAYOUTS: dict[str, Layout] = {"stretch": Layout(), "shorter_side": Layout()}
"""The layout of a batch for each value of `Preprocessing.resize`."""


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of a model's images: resize, central crop, then `(image - mean) / std`.

    Training derives the preprocessing from the data options
    (`data.InputPipeline.model_preprocessing`). The model stores it in an `InputPreprocessing`
    layer, and an export applies it to image files.

    Attributes:
        mean, std: one number per channel, in units of the pixel values in image files: [0, 255], or
            [0, 65535] if `bit_depth` is 16.
        resize: "stretch" resizes both sides to the model's size divided by `crop_fraction`,
            bilinearly without antialiasing, as in the JAX reference `vit_jax`; "shorter_side"
            resizes the shorter side to that size and keeps the aspect ratio, with area
            interpolation; or another key of `LAYOUTS`.
        crop_fraction: fraction of the resized image's side that the central crop keeps, in (0, 1].
        interpolation: "bilinear" or "bicubic", antialiased as in Pillow, PyTorch and `jax.image`;
            "" for the interpolation that `resize` implies.
        rounding: "float" keeps the float32 values of a resized image; "uint8" truncates them to
            integers. Images with more than 8 bits per value are never truncated.
        exif: if True, applies the EXIF orientation of photographs.
        bit_depth: bits per value of decoded files, 8 or 16. With 16, the values of 8-bit files are
            scaled to [0, 65535].
        library: library whose decoder and rounding apply: "vit_jax", "torchvision" (timm,
            open_clip) or "transformers". "vit_jax" decodes JPEG files with TensorFlow's default,
            which differs from Pillow by up to 18 of 255; the others decode them as Pillow does. An
            odd margin of the crop is rounded half to even by "torchvision", and down by the others.

    Raises:
        ValueError: a value is out of range, or `mean` and `std` differ in length.
    """

    mean: tuple = (127.5, 127.5, 127.5)
    std: tuple = (127.5, 127.5, 127.5)
    resize: str = "stretch"
    crop_fraction: float = 1.0
    rounding: str = "float"
    exif: bool = False
    bit_depth: int = 8
    interpolation: str = ""
    library: str = "vit_jax"

    def __post_init__(self):
        for field in ("mean", "std"):
            object.__setattr__(self, field, tuple(float(value) for value in getattr(self, field)))
        object.__setattr__(self, "crop_fraction", float(self.crop_fraction))
        if len(self.mean) != len(self.std) or min(self.std, default=0) <= 0:
            raise ValueError(
                "`mean` and `std` must have equal lengths, and std > 0. Received: "
                f"mean={self.mean}, std={self.std}"
            )
        if not 0 < self.crop_fraction <= 1:
            raise ValueError(
                f"`crop_fraction` must be in (0, 1]. Received: crop_fraction={self.crop_fraction}"
            )
        for field, known in (
            ("resize", tuple(LAYOUTS)),
            ("rounding", ("float", "uint8")),
            ("exif", (True, False)),
            ("bit_depth", (8, 16)),
            ("interpolation", ("", "bilinear", "bicubic")),
            ("library", LIBRARIES),
        ):
            value = getattr(self, field)
            if value not in known:
                raise ValueError(
                    f"`{field}` must be {' or '.join(map(repr, known))}. Received: "
                    f"{field}={value!r}"
                )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Preprocessing":
        """Returns the `Preprocessing` for a dict from `to_config`. Fields missing from older files
        get their defaults.

        Raises:
            ValueError: the dict lacks `mean`, `std`, `resize` or `crop_fraction`, has an unknown
                key, or has a value that is out of range.
        """
        fields = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(config, dict) or not set(fields[:4]) <= set(config) <= set(fields):
            raise ValueError(
                f"`preprocessing` must be a `Preprocessing` or a dict with {', '.join(fields[:4])} "
                f"and optionally {', '.join(fields[4:])}. Received: preprocessing={config!r}"
            )
        return cls(**config)

    def to_config(self) -> dict[str, Any]:
        """Returns a JSON-serializable dict."""
        return {**dataclasses.asdict(self), "mean": list(self.mean), "std": list(self.std)}

    @property
    def layout(self) -> Layout:
        """The layout of a batch of images."""
        return LAYOUTS[self.resize]

    @property
    def channels(self) -> int:
        return len(self.mean)

    def resized(self, size: tuple[int, int]) -> tuple[int, ...]:
        """Returns the height and width before the central crop to `size`, rounded down as in
        timm."""
        # The small number keeps whole results of inexact fractions, such as 256 for 224 / 256.
        return tuple(math.floor(side / self.crop_fraction + 1e-6) for side in size)

    def for_channels(self, channels: int) -> "Preprocessing":
        """Returns the same preprocessing for another number of channels, if all channels share one
        mean and std.

        Raises:
            ValueError: the number of channels changes, but the channels do not share one mean and
                std.
        """
        if channels == self.channels:
            return self
        if len({*zip(self.mean, self.std)}) != 1:
            raise ValueError(
                f"`mean` and `std` must have one number for each of {channels} channels. "
                f"Received: mean={self.mean}, std={self.std}"
            )
        return dataclasses.replace(self, mean=self.mean[:1] * channels, std=self.std[:1] * channels)


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
    return Layout().prepare(images, preprocessing, images.shape[1:])


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
        config = operation.get_config() if type(operation).__name__ == "InputPreprocessing" else {}
        if "preprocessing" in config:
            _check_unchanged(model, before)
            return Preprocessing.from_config(config["preprocessing"])
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
