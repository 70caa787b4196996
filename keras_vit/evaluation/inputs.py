"""A dataset as a model takes it: to be evaluated on, or to be represented."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_vit import data
from keras_vit.data.sources import listed_once
from keras_vit.models.shapes import check_images_known
from keras_vit.preprocessing import find_preprocessing


@listed_once()
def load_inputs(
    model: keras.Model,
    name: str,
    path: str = "",
    splits: Sequence[str] = ("train", "test"),
    batch_size: int = 64,
    max_bad_share: float = 0.01,
) -> data.InputPipeline:
    """The input pipeline of a dataset for a model, with the preprocessing that the model carries.

    Args:
        model: a `keras.Model` of images `(B, H, W, C)`.
        name: of the dataset, as `data.load_split` takes it: "digits", "cifar10", "imagenet_v2", "tfds:NAME", "folder".
        path: where it lies; "" for the usual place.
        splits: which ones are loaded; `("",)` is all of a folder. Of one, the pipeline has it for both.
        batch_size: images that are computed at a time.
        max_bad_share: the share of a split that may be unreadable.

    Returns:
        A `data.InputPipeline`.

    Raises:
        ValueError: there is no such dataset, or it is not where it was looked for.
    """
    details: dict[str, Any] = {"path": path}
    if name.partition(":")[0] == "shapes":  # drawn at any size
        details["image_shape"] = check_images_known(model)
    loaded = {split: data.load_split(name, split, **details) for split in splits}
    train, test = loaded[splits[0]], loaded[splits[-1]]
    return data.InputPipeline(train, test, options_for(model, test), batch_size, 0, max_bad_share)


def load_run_inputs(model: keras.Model, config: Mapping[str, Any], batch_size: int = 64) -> data.InputPipeline:
    """The input pipeline of a run's `data` group for its model, with the normalization that the model carries.

    Args:
        model: the run's `keras.Model`.
        config: the `data` group; lists of a JSON file stand for tuples.
        batch_size: images that are computed at a time.

    Raises:
        ValueError: as `data.from_config`.
    """
    config = {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}
    inputs = data.from_config(config, batch_size=batch_size, seed=0)
    preprocessing = find_preprocessing(model)
    return inputs if preprocessing is None else inputs.normalized_as(preprocessing)


def options_for(model, source):
    """The fields of `data.Options` with which images of a source become those of a model, a dict.

    Raises:
        ValueError: the model's images are not square, and the source's are of another size; or the model changes
            images before they come to its `InputPreprocessing`.
    """
    height, width, channels = check_images_known(model)
    options: dict[str, Any] = {"channels": channels}
    stored = tuple(source.image_spec.shape) if source.image_spec.shape.rank == 3 else None
    if stored != (height, width, channels):
        if height != width:
            raise ValueError(
                "The images of datasets are made square; the model must have square images, or those of the dataset. "
                f"Received: a model of {height}x{width} pixels"
            )
        options |= {"image_size": height, "eval_crop": "resize"}
    preprocessing = find_preprocessing(model)
    if preprocessing is None:  # another model than those of this library: images in [-1, 1]
        return options
    white = 65535 if preprocessing.bit_depth == 16 else 255
    if {*preprocessing.mean, *preprocessing.std} != {white / 2}:
        # Else it is half of white, whatever white is in the source.
        scale = source.max_value / white
        options["mean"] = tuple(value * scale for value in preprocessing.mean)
        options["std"] = tuple(value * scale for value in preprocessing.std)
    options |= {"rounding": preprocessing.rounding, "exif": preprocessing.exif}
    if source.is_encoded:
        options["bit_depth"] = preprocessing.bit_depth
    is_cropped = preprocessing.crop_fraction < 1
    if is_cropped and height != width:
        raise ValueError(
            "The images of datasets are made square; a model with a `crop_fraction` below 1 must have square images. "
            f"Received: a model of {height}x{width} pixels, crop_fraction={preprocessing.crop_fraction}"
        )
    if is_cropped or ("image_size" in options and preprocessing.resize == "shorter_side"):
        options["image_size"] = height
        options["eval_crop"] = "resize_small_crop" if preprocessing.resize == "shorter_side" else "resize_crop"
        options["resize_size"] = round(height / preprocessing.crop_fraction)
    return options
