"""What is odd about the first batch, and where a step stops being finite."""

import keras
import numpy as np
from keras import ops

from keras_vit.preprocessing import Preprocessing, find_preprocessing


class Diverged(ValueError):
    """Training cannot go on, since the loss, the gradients or the weights are not finite."""

    exit_code = 3  # of a command that ends with it


def batch_warnings(batch, model):
    """What is odd about a batch `(images, labels, example_weights)` for a model, as a list of lines."""
    images, labels, weights = (np.asarray(part) for part in batch)
    if images.shape[1:] != model.input_shape[1:]:
        raise ValueError(
            f"The model takes images of {model.input_shape[1:]}; `model.input_shape` and `data.image_size` must agree. "
            f"Received: images of {images.shape[1:]}"
        )
    lines = []
    good = weights > 0
    if not good.any():
        return ["no image of the first batch can be read"]
    low, high = images[good].min() + 0.0, images[good].max() + 0.0  # no -0
    if not np.isfinite(images).all():
        lines.append("an image of the first batch has pixels that are not finite")
    else:
        black, white = _range_of(model)
        margin, middle = 0.001 * (white - black), (black + white) / 2
        where = f"[{black:.3g}, {white:.3g}], and the first batch is in [{low:.3g}, {high:.3g}]"
        if low < black - margin or high > white + margin:
            lines.append(f"images should be in {where}")
        elif low >= middle or high <= middle or high - low < (white - black) / 4:
            lines.append(f"images should use {where}")
    if labels.min() < 0 or labels.max() > 1 or not labels[good].any(-1).all():
        lines.append("labels should be rows of shares in [0, 1], at least one of them above 0")
    if len(labels[good]) > 4 and np.ptp(labels[good], axis=0).max() == 0:
        lines.append(f"all {len(labels[good])} labels of the first batch are the same: are the examples shuffled?")
    if (~good).mean() > 0.5:
        lines.append(f"{(~good).sum()} of {len(good)} examples of the first batch cannot be read")
    return lines


def _range_of(model):
    """The values of black and white that a model's images have, the lowest and the highest of all channels."""
    preprocessing = find_preprocessing(model) or Preprocessing()
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    return (-mean / std).min() + 0.0, ((2**preprocessing.bit_depth - 1 - mean) / std).max()


def first_nonfinite_layer(model, compute_gradients, batch, pieces):
    """A phrase that names the layer in which a batch stops being finite: forward from the images, else backward."""
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
