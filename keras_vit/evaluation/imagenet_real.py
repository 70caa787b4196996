"""Accuracy with ImageNet's reassessed labels (ReaL), of which several, or none, may be right."""

import re

import numpy as np
from keras import ops

from keras_vit import files
from keras_vit.evaluation import top1
from keras_vit.evaluation.collecting import collect

METRICS = ("accuracy",)
SPLITS = ("test",)
check = top1.check
DATASET = "imagenet2012_real"
_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


def evaluate(model, inputs, engine=None):
    """The share of images whose largest logit is of any right label; images without one are not counted.

    Args:
        model: a `keras.Model` whose outputs are 1,000 logits, in ImageNet's order.
        inputs: the `data.InputPipeline` of TFDS' `imagenet2012_real`; for the labels of `real.json`, see
            `evaluate_json`.
        engine: of a run; not used.

    Returns:
        `accuracy`.

    Raises:
        ValueError: the model has other classes than the data, or no image can be read and has a label.

    Reference: Beyer et al., "Are we done with ImageNet?" (2020).
    """
    return {"accuracy": top1.evaluate(model, inputs)["accuracy"]}


def evaluate_json(model, inputs, path):
    """The same from the file of the paper's authors.

    Args:
        model: as of `evaluate`.
        inputs: the `data.InputPipeline` of the validation images as files, `ILSVRC2012_val_00000001.JPEG` and so on,
            in one folder in the folder of the pipeline, or in several; how they are called does not matter.
        path: of `real.json`: a list of right labels for each image, in the order of their numbers, from 1.

    Returns:
        `accuracy`.

    Raises:
        ValueError: the file is not such a list, an image has no number or no entry, or no image can be read and has a
            label.
    """
    labels = read_labels(model, path)
    arrays = collect(model, _predictions, inputs)
    right, counted = 0, 0
    for index in np.flatnonzero(arrays["weights"]):
        entry = labels[_number(inputs.test.name_of(int(index)), len(labels)) - 1]
        counted += bool(entry)
        right += int(arrays["predictions"][index]) in entry
    if not counted:
        raise ValueError(f"No image that can be read has a label. Received: path={path!r}")
    return {"accuracy": right / counted}


def read_labels(model, path):
    """The content of `real.json`: a list of right labels for each image."""
    if not files.exists(path):
        raise ValueError(f"There is no such file. Received: path={path!r}")
    labels = files.read_json(path)
    if not isinstance(labels, list) or not all(isinstance(entry, list) for entry in labels):
        raise ValueError(f"`real.json` must be a list with a list of labels for each image. Received: path={path!r}")
    classes = model.output_shape[-1]
    labeled = [label for entry in labels for label in entry]
    if len(model.output_shape) != 2 or not all(isinstance(label, int) and 0 <= label < classes for label in labeled):
        raise ValueError(
            f"The labels must be those of the model, integers in [0, {classes}). "
            f"Received: path={path!r}, output_shape={model.output_shape}"
        )
    return labels


def _number(name, count):
    match = _NUMBER.search(name)
    if not match or not 1 <= int(match[1]) <= count:
        raise ValueError(
            f"Images must be named ILSVRC2012_val_00000001 to {count:08}, as the list has them. Received: {name!r}"
        )
    return int(match[1])


def _predictions(model, batch):
    outputs = ops.cast(model(batch[0], training=False), "float32")
    return {"predictions": ops.argmax(outputs, axis=-1), "means": ops.mean(outputs, axis=-1)}  # finite, or an error
