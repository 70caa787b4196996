"""A look at the first batch, before anything is trained on it."""

import numpy as np


def batch_warnings(batch, model):
    """What is odd about a batch, as lines for the user.

    Args:
        batch: `(images, labels, example_weights)`, as `data` makes it.
        model: the `keras.Model` that it is for.

    Returns:
        A list of lines, empty for a batch as it should be.

    Raises:
        ValueError: the images do not have the model's shape.
    """
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
