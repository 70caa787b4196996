"""What to say when training goes wrong, and before it does."""

import numpy as np
import tensorflow as tf

OUT_OF_MEMORY = (
    "The memory of a device is full. Three settings help, the first two without changing a number of the training: "
    "accumulate_steps=8 computes the batch in parts, remat=True computes the blocks twice instead of keeping what is "
    "in them, and precision='mixed_bfloat16' halves what is kept; so does half the batch_size."
)


def warnings_about(images, labels, weights, model):
    """What is odd about a first batch, as lines for the user.

    Args:
        images, labels, weights: a batch, as `data` makes it.
        model: the `keras.Model` that it is for.

    Returns:
        A list of lines, empty for a batch as it should be.

    Raises:
        ValueError: the shapes are not the model's.
    """
    images, labels, weights = (np.asarray(part) for part in (images, labels, weights))
    if images.shape[1:] != model.input_shape[1:] or labels.shape[1:] != model.output_shape[1:]:
        raise ValueError(
            f"The model takes images of {model.input_shape[1:]} and has {model.output_shape[-1]} classes; "
            "`model.input_shape` and `data.image_size` must agree. "
            f"Received: images of {images.shape[1:]} and labels of {labels.shape[1:]}"
        )
    lines = []
    good = weights > 0
    if not good.any():
        return ["no image of the first batch can be read"]
    low, high = images[good].min() + 0.0, images[good].max() + 0.0  # no -0
    if not np.isfinite(images).all():
        lines.append("an image of the first batch has pixels that are no finite numbers")
    elif low < -1.001 or high > 1.001:
        lines.append(f"images should be in [-1, 1], and the first batch is in [{low:.3g}, {high:.3g}]")
    elif low >= 0 or high <= 0 or high - low < 0.5:
        lines.append(f"images should use [-1, 1], and the first batch is in [{low:.3g}, {high:.3g}]")
    if labels.min() < 0 or labels.max() > 1 or not labels[good].any(-1).all():
        lines.append("labels should be rows of shares in [0, 1], at least one of them above 0")
    if len(labels[good]) > 4 and np.ptp(labels[good], axis=0).max() == 0:
        lines.append(f"all {len(labels[good])} labels of the first batch are the same: are the examples shuffled?")
    if (~good).mean() > 0.5:
        lines.append(f"{(~good).sum()} of {len(good)} examples of the first batch cannot be read")
    return lines


def first_broken_layer(model, loss, images, labels, pieces):
    """Where numbers stop being finite: forwards from the images, or, if all are finite there, backwards from the loss.

    Args:
        model: a functional `keras.Model`, with the weights that the step had.
        loss: from labels and logits to losses `(B,)`.
        images, labels: the batch of the step.
        pieces: into how many parts it is divided, for memory.

    Returns:
        A phrase that names the layer.
    """
    names = [layer.name for layer in model.layers]
    layers = type(model)(model.input, [layer.output for layer in model.layers])
    first, last = len(names), -1
    for piece, answers in zip(np.array_split(images, pieces), np.array_split(labels, pieces)):
        if not len(piece):
            continue
        outputs = layers(piece, training=False)
        broken = [i for i, output in enumerate(outputs) if not _finite(output)]
        first = min([first, *broken])
        if broken:
            continue
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(loss(answers, model(piece, training=False)))
        if not _finite(total):
            continue
        gradients = tape.gradient(total, model.trainable_variables)
        for gradient, variable in zip(gradients, model.trainable_variables):
            # Its squares, which the norm adds up, may be too large where the gradient is not.
            if gradient is not None and not _finite(tf.reduce_sum(tf.square(gradient))):
                # A variable's path starts with the name of its layer, or of the model's copy of it.
                owner = next(i for i, layer in enumerate(model.layers) if any(w is variable for w in layer.weights))
                last = max(last, owner)
    if first < len(names):
        if not _weights_finite(model.layers[first]):
            return f"the weights of the layer {names[first]!r} are no finite numbers"
        return f"the first layer to give what is no finite number is {names[first]!r}"
    if last >= 0:
        return f"on its way back, the gradient breaks in the layer {names[last]!r}"
    return "every layer is finite without dropout"


def _weights_finite(layer):
    return all(_finite(weight.value) for weight in layer.weights)


def _finite(tensor):
    return not tensor.dtype.is_floating or bool(tf.reduce_all(tf.math.is_finite(tensor)))
