"""What a model gives for every example of a dataset, as arrays; for evaluators."""

import dataclasses
import logging

import keras
import numpy as np

from keras_vit import data, terminal
from keras_vit.models.shapes import output_shape_of

log = logging.getLogger("keras_vit")


class _Outputs(keras.Model):
    """A function of a model and a batch as a Keras model, which every backend compiles."""

    def __init__(self, model, compute):
        super().__init__(dtype="float32", name="outputs")
        self.model, self._compute = model, compute
        self.built = True
        self.jit_compile = keras.backend.backend() == "jax"  # where XLA is all the compilation there is

    def call(self, batch):
        return self._compute(self.model, batch)


def collect(model, compute, inputs, split="test", indices=None):
    """A function of a model over all examples of a split, in the order of their indices.

    What cannot be read is counted and named, and more than `max_bad_share` of the split is an error, as in a run.

    Args:
        model: a `keras.Model`.
        compute: `compute(model, batch)` to a dict of tensors `(B, ...)`, in `keras.ops`.
        inputs: the `data.InputPipeline`.
        split: "train" or "test".
        indices: of which examples; None for all.

    Returns:
        A dict of numpy arrays `(N, ...)`: what `compute` gives, "labels" `(N, classes)`, 0 where a class is not right,
        and "weights" `(N,)`, 0 for an example that cannot be read or has no label.

    Raises:
        ValueError: no example can be read and has a label, too many cannot be read, or the model's numbers are not
            finite.
    """
    if indices is not None:
        inputs = dataclasses.replace(inputs, **{split: data.subset(getattr(inputs, split), indices)})
    source = getattr(inputs, split)
    # Both splits are evaluated, none is distorted: as the test split of a pipeline of its own.
    inputs = dataclasses.replace(inputs, train=source, test=source)
    outputs, parts = _Outputs(model, compute), []
    bad_examples = inputs.bad_examples("test", warn=lambda line: log.warning("%s: %s", split, line))
    done, total = 0, source.num_examples
    with terminal.progress_bar(f"evaluating, {split}", total, "images") as update:
        for step, batch in enumerate(inputs.eval_batches()):
            batch = tuple(np.asarray(part) for part in batch)
            bad_examples.update(step, batch[2][: total - done])
            arrays = {name: np.asarray(value) for name, value in outputs.predict_on_batch(batch).items()}
            parts.append({**arrays, "labels": batch[1], "weights": batch[2]})
            done = min(done + len(batch[1]), total)
            update(done)
    place = np.argsort(data.evaluation_order(source, inputs.batch_size))
    result = {name: np.concatenate([part[name] for part in parts])[:total][place] for name in parts[0]}
    left_out = int(np.count_nonzero(result["weights"] == 0))
    if left_out:
        log.warning(
            "%s: %d of %d examples are left out: %d cannot be read, %d have no label",
            split, left_out, total, bad_examples.count, left_out - bad_examples.count,
        )  # fmt: skip
    if left_out == total:
        raise ValueError(f"No example can be read and has a label. Received: {total} examples")
    for name in parts[0]:
        array = result[name][result["weights"] > 0]
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise ValueError(f"What the model gives must be finite. Received: {name} with NaN or infinity")
    return result


def mean_over_examples(model, inputs, compute, engine=None):
    """The means of a function of a model and a batch over the test examples: a dict of floats.

    Args:
        model, inputs, engine: as of every evaluator.
        compute: `compute(model, batch)` to a dict of float32 `(B,)`, in `keras.ops`.
    """
    if engine is not None:
        metrics = engine.evaluate(compute)
        del metrics["examples"]  # the run's own evaluation counts them
        return metrics
    arrays = collect(model, compute, inputs)
    counted = arrays["weights"] > 0
    return {
        name: float(values[counted].mean(dtype="float64"))
        for name, values in arrays.items()
        if name not in ("labels", "weights")
    }


def spread_of_classes(inputs, number, most=4096):
    """Some readable test images of as many classes as possible.

    Args:
        inputs: the `data.InputPipeline`.
        number: how many images, if there are as many.
        most: how many images are read to find them, from a source that does not know its labels beforehand.

    Returns:
        `(images, labels)`: float32 `(number, H, W, C)` and `(number, classes)`.
    """
    source = inputs.test
    if source.labels is not None and source.read is not None:
        labels = np.asarray(source.labels)
        by_class = np.argsort(labels, kind="stable")
        turn = np.arange(len(labels)) - np.searchsorted(labels[by_class], labels[by_class])
        # The first image of each class, then the second of each, and so on; a few more, some may be unreadable.
        source = data.subset(source, by_class[np.argsort(turn, kind="stable")][: 2 * number])
    each = max(1, -(-number // len(source.class_names)))
    counts, chosen, rest, seen = {}, [], [], 0
    for batch in data.eval_batches(source, batch_size=inputs.batch_size, options=inputs.test_options):
        images, labels, weights = (np.asarray(part) for part in batch)
        for row in np.flatnonzero(weights > 0):
            label = int(labels[row].argmax())
            counts[label] = counts.get(label, 0) + 1
            (chosen if counts[label] <= each else rest).append((images[row], labels[row]))
        del rest[number:]
        seen += len(images)
        if len(chosen) >= number or seen >= most:
            break
    images, labels = zip(*(chosen + rest)[:number])
    return np.stack(images), np.stack(labels)


def check_classes(model, inputs):
    """Raises a `ValueError` unless a model has an output for each class of the test split."""
    shape, classes = output_shape_of(model), len(inputs.test.class_names)
    if len(shape) != 2 or shape[-1] != classes:
        raise ValueError(
            f"The model must have an output for each of the {classes} classes of the data. "
            f"Received: output_shape={shape}"
        )
