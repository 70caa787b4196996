"""The preprocessing of a model's images, and the layout of its batches."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

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
        return preprocessing.normalized(images)

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

    def normalized(self, images: Any) -> Any:
        """Returns `(images - mean) / std` of a float32 tensor `(..., C)`, which may have any number
        of channels if all share one mean and std."""
        if len({*zip(self.mean, self.std)}) == 1:  # several times faster than broadcasting
            return (images - self.mean[0]) / self.std[0]
        return (images - np.array(self.mean, "float32")) / np.array(self.std, "float32")

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
