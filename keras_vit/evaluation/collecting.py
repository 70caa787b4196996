"""Collects a model's outputs for a split as arrays."""

import contextlib
import dataclasses
import logging

import keras
import numpy as np
from keras import ops

from keras_vit import data, terminal

log = logging.getLogger("keras_vit")

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


def counted_outputs(model, inputs):
    """Returns the outputs `(N, ...)` and the labels `(N, classes)` of the test examples that can be
    read and have a label."""
    arrays = collect(model, outputs_of, inputs)
    counted = arrays["weights"] > 0
    return arrays["outputs"][counted], arrays["labels"][counted]


def with_labels(inputs):
    """Returns inputs with classes as targets, if a task learns from the images of a source of
    classes alone."""
    has_classes = inputs.test.target == "classes" and inputs.test.class_names
    if inputs.target != "none" or not has_classes:
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
    inputs = dataclasses.replace(with_labels(inputs), train=source, test=source)
    outputs = reused(_Outputs, model, compute)
    parts = []
    bad_examples = inputs.bad_examples("test", warn=lambda line: log.warning("%s: %s", split, line))
    total = source.num_examples
    with terminal.progress_bar(f"evaluating, {split}", total, "images") as update:
        for step, batch in enumerate(inputs.eval_batches()):
            batch = tuple(map(np.asarray, batch))
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


def mean_over_examples(model, inputs, compute, engine=None):
    """Averages each value of `compute(model, batch)`, a dict of float32 `(B,)`, over the test
    examples.

    Unreadable and unlabeled examples are left out.
    """
    if engine is not None and inputs.target != "none":  # otherwise, its batches have no labels
        metrics = engine.evaluate(compute)
        del metrics["examples"]  # the run's evaluation already reports this count
        return metrics
    arrays = collect(model, compute, inputs)
    counted = arrays.pop("weights") > 0
    del arrays["labels"]
    return {name: float(values[counted].mean(dtype="float64")) for name, values in arrays.items()}
