"""What a model gives for every example of a dataset, as arrays; for evaluators."""

import contextlib
import contextvars
import hashlib
import logging

import keras
import numpy as np

from keras_vit import data

_progress = contextvars.ContextVar("progress", default=None)


class _Outputs(keras.Model):
    """A function of a model and a batch as a Keras model, which every backend compiles."""

    def __init__(self, model, compute):
        super().__init__(dtype="float32", name="outputs")
        self.model, self._compute = model, compute
        self.built = True
        self.jit_compile = keras.backend.backend() == "jax"  # where XLA is all the compilation there is

    def call(self, batch):
        return self._compute(self.model, batch)


def collect(model, compute, source, options, batch_size=64, indices=None):
    """A function of a model over all examples of a source, in order.

    Args:
        model: a `keras.Model`.
        compute: `compute(model, batch)` to a dict of tensors `(B, ...)`, in `keras.ops`.
        source: the `data.Source`.
        options: the fields of `data.Options`, a dict.
        batch_size: examples that are computed at a time.
        indices: of which examples; None for all.

    Returns:
        A dict of numpy arrays `(N, ...)`: what `compute` gives, "labels" `(N, classes)`, 0 where a class is not right,
        and "weights" `(N,)`, 0 for an example that cannot be read or has no label. Their number is logged.
    """
    if indices is not None:
        source = data.subset(source, indices)
    outputs, parts = _Outputs(model, compute), []
    done, total = 0, source.num_examples
    progress = _progress.get()
    for batch in data.eval_batches(source, batch_size=batch_size, **options):
        batch = tuple(np.asarray(part) for part in batch)
        arrays = {name: np.asarray(value) for name, value in outputs.predict_on_batch(batch).items()}
        parts.append({**arrays, "labels": batch[1], "weights": batch[2]})
        done = min(done + len(batch[1]), total)
        if progress:
            progress(done, total)
    result = {name: np.concatenate([part[name] for part in parts])[:total] for name in parts[0]}
    left_out = int(np.count_nonzero(result["weights"] == 0))
    if left_out:
        logging.getLogger("keras_vit").warning(
            "%d of %d examples cannot be read or have no label, and are left out", left_out, total
        )
    if left_out == total:
        raise ValueError(f"No example can be read and has a label. Received: {total} examples")
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
    arrays = collect(model, compute, inputs.test, inputs.options, inputs.batch_size)
    counted = arrays["weights"] > 0
    return {
        name: float(values[counted].mean(dtype="float64"))
        for name, values in arrays.items()
        if name not in ("labels", "weights")
    }


def check_classes(model, source):
    """Raises a `ValueError` unless a model has an output for each class of a source."""
    classes = model.output_shape[-1]
    if len(model.output_shape) != 2 or classes != len(source.class_names):
        raise ValueError(
            f"The model must have an output for each of the {len(source.class_names)} classes of the data. "
            f"Received: output_shape={model.output_shape}"
        )


def weights_digest(model):
    """The SHA-256 of all weights of a model, in hexadecimal: which model a result is of."""
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def show_progress(report):
    """While it is open, `report(done, total)` is called after every batch of `collect`."""
    token = _progress.set(report)
    try:
        yield
    finally:
        _progress.reset(token)
