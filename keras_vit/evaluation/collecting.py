"""Loads evaluation data and collects a model's outputs as arrays."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import data, terminal
from keras_vit.data.loading import fields_of
from keras_vit.data.sources.folders import has_no_splits
from keras_vit.models.any_model import check_images_known, check_not_masked, output_shape_of
from keras_vit.models.zero_shot import class_names_of
from keras_vit.preprocessing import find_preprocessing

_COLUMNS = ("file_column", "label_column", "label_separator")  # fields for the tables of a run

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
    details["path"] = path
    taken = fields_of(name)
    if name in ("folder", run.get("name")):
        fields = {"test_share", "split_seed", *_COLUMNS}
        if is_data_of_run(name, path, run):
            fields |= {"groups", "fold"}
        elif splits[0] and (name != "folder" or has_no_splits(path)):
            _warn_of_other_split(path, run)
        details = {field: run[field] for field in fields & set(taken) & set(run)} | details
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


def _warn_of_other_split(path, run):
    """Warns if the run has groups or a fold, which are not applied to the data in `path`."""
    if run.get("groups") or run.get("fold"):
        log.warning(
            "The groups and the fold of the run do not apply to %s, because the run has its data "
            "in %s. If it is a copy of them, its test split may contain training images; evaluate "
            "it with --data_path and without --data.",
            path,
            run.get("path", ""),
        )


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


_reused: dict | None = None  # results of `reused` while `reuse_compiled` is active


@contextlib.contextmanager
def reuse_compiled():
    """Shares compiled functions between evaluations in this context, in which the model's layers
    must not change."""
    global _reused
    outer = _reused
    _reused = {} if _reused is None else _reused
    try:
        yield
    finally:
        _reused = outer


def reused(make, *arguments):
    """Returns `make(*arguments)`; inside `reuse_compiled`, equal arguments return the cached
    result."""
    if _reused is None:
        return make(*arguments)
    key = (make, *arguments)
    if key not in _reused:
        _reused[key] = make(*arguments)
    return _reused[key]


class _Outputs(keras.Model):
    """Wraps a function of a model and a batch as a Keras model that every backend can compile."""

    def __init__(self, model, compute):
        super().__init__(dtype="float32", name="outputs")
        self.model = model
        self._compute = compute
        self.built = True
        self.jit_compile = keras.backend.backend() == "jax"  # JAX always compiles with XLA

    def call(self, batch):
        return self._compute(self.model, batch)


def outputs_of(model, batch):
    """Computes `{"outputs": ...}`, the model's outputs in float32, for `collect`."""
    return {"outputs": ops.cast(model(batch[0], training=False), "float32")}


def _with_labels(inputs):
    """Returns inputs with classes as targets, also if the task learns from images alone."""
    if inputs.target != "none" or not inputs.test.class_names:
        return inputs
    return dataclasses.replace(inputs, target="classes", target_arguments={})


def collect(model, compute, inputs, split="test", indices=None):
    """Applies `compute(model, batch)` to a split; returns a dict of the computed arrays, "labels"
    and "weights".

    The first axis of each array indexes the examples. Unreadable examples and examples without a
    label have weight 0; `with_class` also leaves out examples without a correct class.
    """
    source = getattr(inputs, split)
    if indices is not None:
        source = data.subset(source, indices)
    # Read either split as a test split, without augmentation.
    inputs = dataclasses.replace(_with_labels(inputs), train=source, test=source)
    outputs = reused(_Outputs, model, compute)
    parts = []
    bad_examples = inputs.bad_examples("test", warn=lambda line: log.warning("%s: %s", split, line))
    total = source.num_examples
    with terminal.progress_bar(f"evaluating, {split}", total, "images") as update:
        for step, batch in enumerate(inputs.eval_batches()):
            batch = tuple(np.asarray(part) for part in batch)
            bad_examples.check(step, bad_examples.update(step))
            arrays = outputs.predict_on_batch(batch)
            parts.append({**arrays, "labels": batch[1], "weights": batch[2]})
            update(min((step + 1) * inputs.batch_size, total))
    # Restore the source's order and drop the padding.
    place = np.argsort(data.evaluation_order(source, inputs.batch_size))
    result = {
        name: np.concatenate([part[name] for part in parts])[:total][place] for name in parts[0]
    }
    _check_collected(result, split, bad_examples.count)
    return result


def _check_collected(arrays, split, unreadable):
    """Logs the number of examples with weight 0; raises a `ValueError` if no example counts, or a
    value of those that count is not finite."""
    counted = arrays["weights"] > 0
    total = len(counted)
    left_out = total - np.count_nonzero(counted)
    if left_out:
        log.warning(
            "%s: skipped %d of %d examples: %d cannot be read, %d have no label",
            split,
            left_out,
            total,
            unreadable,
            left_out - unreadable,
        )
    if left_out == total:
        raise ValueError(
            f"At least one example must be readable and labeled. Received: {total} examples"
        )
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array[counted]).all():
            raise ValueError(
                f"The model's outputs must be finite. Received: {name} with NaN or infinity"
            )


def with_class(arrays, split="test"):
    """Returns which examples of `collect` have a correct class and positive weight: a Boolean array
    `(N,)`."""
    counted = arrays["weights"] > 0
    chosen = counted & (arrays["labels"] > 0).any(1)
    check_has_class(chosen.mean())
    if left_out := np.count_nonzero(counted & ~chosen):
        log.warning(
            "%s: skipped %d of %d examples, which have no correct class",
            split,
            left_out,
            len(chosen),
        )
    return chosen


def check_has_class(share):
    """Raises a `ValueError` if no example has a correct class."""
    if not share:
        raise ValueError(
            "At least one example must have a correct class; only `average_precision` uses the "
            "others. Received: examples without a correct class"
        )


def mean_over_examples(model, inputs, compute, engine=None):
    """Averages each value of `compute(model, batch)`, a dict of float32 `(B,)`, over the test
    examples.

    Unreadable and unlabeled examples are left out.
    """
    if engine is not None:
        metrics = engine.evaluate(compute)
        del metrics["examples"]  # the run's evaluation already reports this count
        return metrics
    arrays = collect(model, compute, inputs)
    counted = arrays.pop("weights") > 0
    del arrays["labels"]
    return {name: float(values[counted].mean(dtype="float64")) for name, values in arrays.items()}


def sample_indices(inputs, number):
    """Returns the indices of up to `number` test examples: evenly spaced, or the first ones of a
    sequential source.

    If the labels of a multi-label source are known, only examples with a class are chosen.
    """
    source = inputs.test
    if source.read is None:
        return data.evaluation_order(source, inputs.batch_size)[:number]
    if source.multi_label and source.labels.any():
        candidates = np.flatnonzero(source.labels.any(1))
    else:
        candidates = np.arange(source.num_examples)
    return candidates[np.unique(np.linspace(0, len(candidates) - 1, number).astype(int))]


def read_test_examples(inputs, indices):
    """Reads test examples by index; returns `(images, labels, file names)` of the readable examples
    with a correct class, or another kind of target."""
    source = inputs.test
    if source.read is None:
        order = data.evaluation_order(source, inputs.batch_size)
    else:
        source = data.subset(source, indices)
        order = np.asarray(indices)
    is_requested = np.isin(order, indices)
    examples = {}
    # Read batches up to the last requested example.
    selected = dataclasses.replace(_with_labels(inputs), test=source)
    bad_examples = selected.bad_examples("test", log.debug)
    for step, batch in enumerate(selected.eval_batches()):
        images, labels, weights = (np.asarray(part) for part in batch)
        bad_examples.update(step)
        start = step * inputs.batch_size
        counted = weights > 0
        if selected.target == "classes":
            counted &= (labels > 0).any(1)
        for row in np.flatnonzero(counted):
            if is_requested[start + row]:
                index = int(order[start + row])
                examples[index] = images[row], labels[row], inputs.test.short_name(index)
        if not is_requested[start + len(images) :].any():
            break
    found = [examples[index] for index in map(int, indices) if index in examples]
    if not found:
        raise ValueError(
            "At least one example must be readable and have a correct class. Received: "
            f"{len(indices)} examples"
        )
    images, labels, names = zip(*found)
    return np.stack(images), np.stack(labels), names


def check_classes(model: keras.Model, inputs: data.InputPipeline) -> None:
    """Raises a `ValueError` unless the model has one output per class of the test split."""
    check_not_masked(model)
    shape = output_shape_of(model)
    classes = len(inputs.test.class_names)
    if shape[1:] != (classes,):
        raise ValueError(
            f"The model must have one output for each of {classes} classes; the evaluators of "
            "models of pixels are segmentation, segmentation_windows and depth. Received: "
            f"output_shape={shape}"
        )


def check_imagenet(model: keras.Model, inputs: data.InputPipeline | None = None) -> None:
    """Raises a `ValueError` unless the model has one output for each of ImageNet's 1000 classes."""
    check_not_masked(model)
    if output_shape_of(model)[1:] != (1000,):
        raise ValueError(
            "The evaluator requires a classifier of ImageNet's 1000 classes, in their usual order. "
            f"Received: output_shape={output_shape_of(model)}"
        )


def check_class_names(names: Sequence[str], inputs: data.InputPipeline) -> None:
    """Raises a `ValueError` if a class of the test split is another output of the model.

    Classes are compared with outputs by position. Names are compared without case; logs names that
    the model does not have, because these may be other words for the same classes.

    Args:
        names: names of the model's classes, in the order of its outputs; () if unknown.
        inputs: a `data.InputPipeline`.
    """
    ours = [str(name).casefold() for name in names]
    theirs = [str(name).casefold() for name in inputs.test.class_names]
    if ours == theirs or len(ours) != len(theirs) or inputs.target != "classes":
        return
    moved = [name for i, name in enumerate(theirs) if name in ours and ours[i] != name]
    if moved:
        raise ValueError(
            "The classes of the dataset must have the order of the model's outputs. Received: "
            f"{moved[:10]} at other positions; classes {theirs[:10]}, outputs {ours[:10]}"
        )
    unknown = [name for name in theirs if name not in ours]
    log.warning(
        "%d classes of the dataset have other names than the model's outputs and are compared by "
        "position, such as %s",
        len(unknown),
        ", ".join(f"{name} with {ours[theirs.index(name)]}" for name in unknown[:5]),
    )


_ONE_LABEL = (
    "This evaluator requires one label per example; `multi_label`, `average_precision` and `top1` "
    "support several labels. Received: examples of the split {!r} with several labels"
)


def check_one_label(inputs):
    """Raises a `ValueError` if test examples may have several labels; unknown labels are read from
    the first batch."""
    if inputs.test.multi_label:
        raise ValueError(_ONE_LABEL.format("test"))
    if inputs.test.labels is None:
        _, labels, _ = next(iter(_with_labels(inputs).eval_batches()))
        refuse_several_labels(np.asarray(labels))


def refuse_several_labels(labels, split="test"):
    """Raises a `ValueError` if a row of one-hot labels `(N, classes)` has several labels."""
    if (np.count_nonzero(labels, axis=1) > 1).any():
        raise ValueError(_ONE_LABEL.format(split))
