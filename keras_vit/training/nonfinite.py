"""Where a step stops being finite."""

import keras
import numpy as np
from keras import ops


class Diverged(ValueError):
    """Training cannot go on, since the loss, the gradients or the weights are not finite."""

    exit_code = 3  # of a command that ends with it


def first_nonfinite_layer(model, compute_gradients, batch, pieces):
    """The layer in which a batch stops being finite: forward from the images, or, if all is finite there, backward
    from the loss.

    Args:
        model: a `keras.Model`, functional for a diagnosis by layers, with the weights that the step started with.
        compute_gradients: `compute_gradients(piece)` to the sum of the losses of a part of the batch, a scalar, and its
            gradients with respect to `model.trainable_variables`, a list of tensors or None.
        batch: `(images, labels, example_weights)`, of the step.
        pieces: number of parts into which the batch is divided, to save memory.

    Returns:
        A phrase that names the layer, or says that it is not known of a model that is not functional.
    """
    names = [layer.name for layer in model.layers]
    try:
        (images,) = model.inputs
        all_outputs = keras.Model(images, [layer.output for layer in model.layers])
    except (AttributeError, ValueError):
        return "the layer is not known, since the model is not functional"
    first, last = len(names), -1
    for piece in zip(*(np.array_split(np.asarray(part), pieces) for part in batch)):
        if not len(piece[0]):
            continue
        outputs = all_outputs(piece[0], training=False)
        # A layer may return several tensors.
        nonfinite = [i for i, output in enumerate(outputs) if not all(map(_finite, keras.tree.flatten(output)))]
        first = min([first, *nonfinite])
        if nonfinite:
            continue
        total, gradients = compute_gradients(piece)
        if not _finite(total):
            continue
        for gradient, variable in zip(gradients, model.trainable_variables):
            # Its squares, which the norm adds up, may overflow where the gradient does not.
            if gradient is not None and not _finite(ops.sum(ops.square(gradient))):
                last = max(last, _layer_of(model, variable))
    if first < len(names):
        if not all(_finite(weight.value) for weight in model.layers[first].weights):
            return f"the weights of the layer {names[first]!r} are not finite"
        return f"the first layer whose output is not finite is {names[first]!r}"
    if last >= 0:
        return f"in the backward pass, the gradient stops being finite in the layer {names[last]!r}"
    return "every layer is finite without dropout"


def _layer_of(model, variable):
    return next(i for i, layer in enumerate(model.layers) if any(weight is variable for weight in layer.weights))


def _finite(tensor):
    if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype)):
        return True
    return bool(ops.all(ops.isfinite(tensor)))
