"""Applies `config.weights`: the preprocessing that the weights expect, and the initial weights."""

import dataclasses

import numpy as np

from keras_vit import data
from keras_vit.checkpoints import fetch, find_preprocessing, load
from keras_vit.layers import InputPreprocessing
from keras_vit.preprocessing import Preprocessing


def load_inputs(config, write, task):
    """Loads the data for a task. Images are decoded and normalized as the weights expect.

    The preprocessing of the weights is read from the task's `facts_of_weights`, if it is there;
    otherwise it is read from the weights and added to these facts.

    If the config normalizes differently with its own `mean` or `std`, or if the number of channels
    differs, warns and keeps the config's normalization. `library` in the config replaces that of
    the weights.
    """
    facts = task.facts_of_weights
    fields = {"batch_size": config.batch_size, "seed": config.seed, "target": task.target}
    inputs = data.from_config(config.data, **fields, **task.target_arguments(config))
    if "preprocessing" not in facts:
        found = config.weights and find_preprocessing(config.weights, **_size(config, inputs))
        facts["preprocessing"] = found.to_config() if found else None
    if facts["preprocessing"] is None:
        return inputs
    expected = Preprocessing.from_config(facts["preprocessing"])
    expected = dataclasses.replace(expected, library=config.data.get("library") or expected.library)
    if expected.library != inputs.model_preprocessing().library:
        write(f"JPEG files are decoded as in {expected.library}, as the weights expect")
        options = {**inputs.options, "library": expected.library}
        inputs = dataclasses.replace(inputs, options=options)
    return _normalized(inputs, expected, config.data, write)


def _normalized(inputs, expected, fields, write):
    """Returns inputs normalized as the weights expect, unless `fields`, the `data` of a config, set
    another normalization."""
    own = _normalization(inputs.model_preprocessing())
    theirs = _normalization(expected)
    if own.shape == theirs.shape and np.allclose(own, theirs):
        return inputs
    mean, std = (
        ", ".join(f"{value:.6g}" for value in values) for values in (expected.mean, expected.std)
    )
    numbers = f"mean=({mean}), std=({std})"
    if fields.get("mean") or fields.get("std") or len(theirs) not in (1, inputs.image_shape[-1]):
        write(
            f"warning: the weights expect images normalized with {numbers}, but the config "
            "normalizes differently"
        )
        return inputs
    write(f"images are normalized with {numbers}, as the weights expect")
    return inputs.normalized_as(expected)


def _normalization(preprocessing):
    """Returns the mean and std of each channel for pixels in [0, 1]: `(C, 2)`, or `(1, 2)` if all
    rows are equal."""
    rows = np.array([preprocessing.mean, preprocessing.std]).T / (2**preprocessing.bit_depth - 1)
    return rows[:1] if (rows == rows[0]).all() else rows


def _size(config, inputs):
    """Returns the arguments of the model that select a published file."""
    sizes = {**config.model, "input_shape": config.model.get("input_shape") or inputs.image_shape}
    sizes["resnet_blocks"] = sizes["resnet_blocks"] if sizes.get("stem") else None
    return sizes


def weights_loader(config, inputs, write, stored=None):
    """Downloads `config.weights` and returns a function that loads them into a model, or None if
    the field is empty.

    `stored` is `(model, class names)` if the weights are those of a run, an export or a .keras
    file. Its head is kept if the classes are the same.
    """
    if not config.weights:
        return None
    # Download the weights before building the model.
    fetch(config.weights, **_size(config, inputs))

    def load_weights(model):
        layers = [layer for layer in model.layers if isinstance(layer, InputPreprocessing)]
        kept = [(layer, layer.preprocessing) for layer in layers]  # of the training data
        channels = config.weights_channels or None
        write(str(load(model, config.weights, head="new", channels=channels)))
        for layer, preprocessing in kept:
            layer.preprocessing = preprocessing
        if stored is not None and _keep_head(model, *stored, inputs.train.class_names):
            write(f"the head is that of {config.weights}, because the classes are the same")

    return load_weights


def _keep_head(model, stored, class_names, expected):
    """Copies the head of a stored model if it has the same classes and shape; returns whether it
    does."""
    old = getattr(stored, "head", None)
    if old is None or list(class_names or ()) != list(expected):
        return False
    has_same_shape = [w.shape for w in old.weights] == [w.shape for w in model.head.weights]
    if has_same_shape:
        model.head.set_weights(old.get_weights())
    return has_same_shape
