"""Loads the dataset of a config's `data` group and makes its batches."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from keras_vit.data import loading
from keras_vit.data.options import Options
from keras_vit.data.pipeline import InputPipeline
from keras_vit.data.sources.source import Source

_OPTIONS = {field.name: field.default for field in dataclasses.fields(Options)}
# The fields that do not belong to a source.
_OWN = {
    "name": "digits",
    "train_split": "train",
    "test_split": "test",
    **_OPTIONS,
    "max_bad_share": 0.01,
}


def defaults(**changes: Any) -> dict[str, Any]:
    """Returns the fields of a config's `data` group as a dict of defaults, updated with `changes`.

    The functions in `SOURCES` declare the fields that locate a dataset; `train_split` and
    `test_split` are values of `load_split`'s `split`. `Options` documents the fields that process
    images. `max_bad_share` is the largest tolerated fraction of unreadable examples in an epoch,
    for each split.

    Raises:
        ValueError: a field is unknown.
    """
    fields = loading.loading_fields() | _OWN
    if unknown := sorted(set(changes) - set(fields)):
        raise ValueError(
            f"The fields of `data` are {', '.join(fields)}. Received: {', '.join(unknown)}"
        )
    return fields | changes


def option_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `Options` as a dict: values from a config's `data` group, and defaults
    for other fields."""
    return {name: value for name, value in defaults(**dict(config)).items() if name in _OPTIONS}


def load_splits(config: Mapping[str, Any]) -> dict[str, Source]:
    """Loads both splits of a config's `data` group and returns `{split: source}`; omits the checks
    of `load`."""
    fields = defaults(**dict(config))
    splits = fields["train_split"], fields["test_split"]
    return dict(zip(splits, _load_pair(fields, is_checked=False)))


def count_training_images(config: Mapping[str, Any]) -> int:
    """Returns the number of training images of a config's `data` group.

    Does not start TensorFlow, which must not start before the devices are chosen.
    """
    with tf.Graph().as_default():  # in a graph, sources make their tensors without a device
        train, *_ = load_splits(config).values()
    return train.num_examples


def _load_pair(fields, is_checked=True):
    """Loads both splits that the fields of a `data` group name."""
    arguments = {name: fields[name] for name in loading.loading_fields() if name not in _OWN}
    return loading.load_pair(
        fields["name"], fields["train_split"], fields["test_split"], is_checked, **arguments
    )


def from_config(
    config: Mapping[str, Any],
    *,
    batch_size: int,
    seed: int,
    target: str = "",
    **target_arguments: Any,
) -> InputPipeline:
    """Loads both splits of a dataset and returns an `InputPipeline` for them.

    Args:
        config: a mapping with some or all of the fields of `defaults()`.
        batch_size: number of examples in a batch, over all hosts and replicas.
        seed: a non-negative int32.
        target: name of the target kind, a key of `TARGETS`; "" for that of the source.
        **target_arguments: further arguments of the target kind. For "classes",
            `empty_is_negative=False` gives examples without a correct class weight 0, as the
            softmax loss requires.

    Raises:
        ValueError: a field is unknown or invalid, the dataset cannot be loaded, or it does not fit
            the target kind.
    """
    fields = defaults(**dict(config))
    options = option_fields(fields)
    Options(**options)  # raises an error for an invalid field, before data are loaded
    train, test = _load_pair(fields)
    inputs = InputPipeline(
        train,
        test,
        options,
        batch_size,
        seed,
        fields["max_bad_share"],
        target or train.target,
        target_arguments,
    )
    # Resolve the options now, so that options that do not fit the sources raise an error before the
    # first batch.
    inputs.train_target.check_splits(inputs.test_target)
    return inputs


def hide_accelerators_from_tensorflow() -> None:
    """Hides GPUs and TPUs from TensorFlow, which would otherwise allocate their memory.

    Call it before the first TensorFlow operation.

    Raises:
        RuntimeError: TensorFlow already uses an accelerator.
    """
    for kind in ("GPU", "TPU"):
        if tf.config.get_visible_devices(kind):
            tf.config.set_visible_devices([], kind)
