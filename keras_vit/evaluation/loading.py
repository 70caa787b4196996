"""Loads data for evaluation, prepared as a model requires."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_vit import data
from keras_vit.data.loading import fields_of
from keras_vit.data.sources.folders import has_no_splits
from keras_vit.models.any_model import check_images_known
from keras_vit.models.zero_shot import class_names_of
from keras_vit.preprocessing import find_preprocessing

# Fields that find the values of an example in a table or in a dataset of TFDS.
_KEYS = ("file_column", "label_column", "label_separator", "image_key", "label_key")

log = logging.getLogger("keras_vit")


def load_inputs(
    model: keras.Model,
    name: str,
    path: str = "",
    splits: Sequence[str] = ("train", "test"),
    batch_size: int = 64,
    max_bad_share: float = 0.01,
    class_names: Sequence[str] = (),
    run: Mapping[str, Any] | None = None,
    **details: Any,
) -> data.InputPipeline:
    """Loads a dataset and configures the preprocessing that a model requires.

    Args:
        model: a `keras.Model` that takes images `(B, H, W, C)`.
        name: name of the dataset, as for `data.load_split`: "digits", "cifar10", "tfds:NAME",
            "folder" and others.
        path: folder of the dataset; "" for the default folder.
        splits: splits to load. The first is used for training and the last for testing; `("",)`
            loads a whole folder.
        batch_size: number of images per batch.
        max_bad_share: maximum fraction of unreadable examples in a split, in [0, 1].
        class_names: names of the model's classes, in the order of its outputs; by default those of
            a zero-shot model. The classes of a folder get this order if all of them have these
            names.
        run: the `data` fields of a run. Its fields of the target kind, such as `depth_scale`, also
            apply to the dataset, and a folder or the dataset of the run is split as in the run, so
            that no training image is tested. `groups` and `fold` apply only to the run's own data;
            a warning says if they are left out.
        **details: other arguments of `data.load_split`, such as `split_seed`.

    Returns:
        A `data.InputPipeline`.

    Raises:
        ValueError: the dataset is unknown or cannot be found, has the classes `class_names` in
            another order, or has images that the model does not support.
    """
    run = run or {}
    taken = fields_of(name)
    details = {**_fields_of_run(name, path, splits[0], run), **details, "path": path}
    if "image_shape" in taken and "path" not in taken:  # a source that draws its images
        details["image_shape"] = check_images_known(model)
    names = tuple(class_names or class_names_of(model) or ())
    train, test = _in_order(name, splits, names, details)
    options = _options_for(model, test)
    options |= {field: run[field] for field in data.TARGETS[test.target].defaults if field in run}
    if test.stores_class_numbers:
        options["mask_colors"] = ""  # the colors of the run's own masks
    inputs = data.InputPipeline(train, test, options, batch_size, 0, max_bad_share, test.target)
    return _normalized(model, inputs)


def _fields_of_run(name, path, split, run):
    """Returns the fields of the `data` fields `run` that also locate and divide another dataset."""
    if name not in ("folder", run.get("name")):
        return {}
    fields = {"test_share", "split_seed", *_KEYS}
    is_divided = split and (name != "folder" or has_no_splits(path))
    if is_data_of_run(name, path, run):
        fields |= {"groups", "fold"}
    elif is_divided and (run.get("groups") or run.get("fold")):
        log.warning(
            "The groups and the fold of the run do not apply to %s, because the run has its data "
            "in %s. If it is a copy of them, its test split may contain training images; evaluate "
            "it with --data_path and without --data.",
            path,
            run.get("path", ""),
        )
    return {field: run[field] for field in fields & {*fields_of(name)} & {*run}}


def _in_order(name, splits, names, details):
    """Loads the first and the last split, with classes in the order of `names` if possible."""
    train = data.load_split(name, splits[0], **details)
    found = tuple(train.class_names)
    if train.finds_classes:
        # Each split may lack classes, so both get the same names.
        names = names if set(found) <= set(names) else found
        details = {**details, "class_names": names}
        if names != found:
            train = data.load_split(name, splits[0], **details)
    elif set(found) == set(names) and found != names:
        raise ValueError(
            "The dataset must have its classes in the order of the model's outputs, or other class "
            f"names. Received: classes {found[:10]} of {name!r}, outputs {names[:10]}"
        )
    is_same = splits[-1] == splits[0]
    return train, train if is_same else data.load_split(name, splits[-1], **details)


def splits_to_read(path, splits, run):
    """Returns the splits of a folder to load: `("",)`, all images, or `splits`.

    A folder without subfolders for splits is read whole if `splits` is only "test", unless it is
    the folder of the run with the `data` fields `run`.
    """
    is_run = is_data_of_run("folder", path, run)
    return ("",) if tuple(splits) == ("test",) and not is_run and has_no_splits(path) else splits


def is_data_of_run(name, path, run):
    """Returns whether a dataset in a folder is that of the run with the `data` fields `run`."""
    is_same_path = os.path.realpath(run.get("path", "")) == os.path.realpath(path)
    return run.get("name") == name and is_same_path


def load_run_inputs(
    model: keras.Model, config: Mapping[str, Any], batch_size: int = 64
) -> data.InputPipeline:
    """Loads the data of a run from the `data` field of its config, normalized for the model.

    `class_weights` and `sampling` are off, because they apply only to training.
    """
    config = {
        name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
    }
    config |= {"class_weights": "", "sampling": ""}
    return _normalized(model, data.from_config(config, batch_size=batch_size, seed=0))


def _normalized(model, inputs):
    preprocessing = find_preprocessing(model)  # None without an `InputPreprocessing` layer
    return inputs if preprocessing is None else inputs.normalized_as(preprocessing)


def _options_for(model, source):
    """Returns the fields of `data.Options` that convert a source's images to the model's inputs."""
    height, width, channels = shape = check_images_known(model)
    options: dict[str, Any] = {"channels": channels, "exif": False}
    preprocessing = find_preprocessing(model)
    fixed = data.inputs.kind_for(preprocessing).options_for(shape, preprocessing)
    if fixed is not None:
        return fixed
    # Resize stored images that do not have the model's size.
    is_resized = source.image_spec.shape != shape
    is_cropped = preprocessing is not None and preprocessing.crop_fraction < 1
    if height != width and (is_resized or is_cropped):
        raise ValueError(
            "A model whose images are not square requires a dataset of images of this size, and "
            "`crop_fraction` 1, because other images are resized to squares. Received: a model "
            f"for {height}x{width} pixels"
        )
    if is_resized:
        options |= {"image_size": height, "eval_crop": "resize"}
    # Apply the model's preprocessing.
    if preprocessing is None:
        return options
    options |= {
        name: getattr(preprocessing, name)
        for name in ("rounding", "exif", "interpolation", "library")
    }
    if source.is_encoded:
        options["bit_depth"] = preprocessing.bit_depth
    keeps_ratio = preprocessing.resize == "shorter_side"
    if is_cropped or (is_resized and keeps_ratio):
        options |= {
            "image_size": height,
            "eval_crop": "resize_small_crop" if keeps_ratio else "resize_crop",
            "resize_size": preprocessing.resized((height, width))[0],
        }
    return options
