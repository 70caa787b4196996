"""Finds the first layer with a non-finite output."""

import keras
import numpy as np
from keras import ops


class Diverged(ValueError):
    """Raised if the loss, the gradients or the weights are not finite."""

    exit_code = 3  # exit code of a command that ends with this error


def first_nonfinite_layer(model, images, num_batches):
    """Searches for the first layer with a non-finite output, and returns a phrase with the result.

    Evaluates the images in `num_batches` batches, or one per image if there are fewer images, to
    save memory.
    """
    try:
        all_outputs = keras.Model(model.input, [layer.output for layer in model.layers])
    except (AttributeError, ValueError):
        return "the layer is unknown because the model is not functional"
    if len(model.inputs) > 1:
        return "the layer is unknown because the model has several inputs"
    for batch in np.array_split(images, min(num_batches, len(images))):
        for layer, outputs in zip(model.layers, all_outputs(batch, training=False)):
            if not all(map(_is_finite, keras.tree.flatten(outputs))):
                if not all(_is_finite(weight.value) for weight in layer.weights):
                    return f"the weights of layer {layer.name!r} are not finite"
                return f"the first layer whose output is not finite is {layer.name!r}"
    return "a forward pass without dropout is finite in every layer"


def _is_finite(tensor):
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    return not keras.backend.is_float_dtype(dtype) or bool(ops.all(ops.isfinite(tensor)))
