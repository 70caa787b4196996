"""Into a model and out of it: pixel values to what it expects, its outputs to names."""

import keras
from keras import ops

from keras_vit.checkpoints.downloading import fetch

# Class names, one a line, in the order of the heads of the published weights.
_NAMES = {
    1000: "https://storage.googleapis.com/bit_models/ilsvrc2012_wordnet_lemmas.txt",
    21843: "https://storage.googleapis.com/bit_models/imagenet21k_wordnet_lemmas.txt",
}


def preprocess_input(images, model=None):
    """[0, 255] to float32 in [-1, 1], the range every model here expects.

    Args:
        images: `(B, H, W, C)` or `(H, W, C)`, of any dtype, values in [0, 255]; already of the model's size.
        model: None, or the model that gets the images, where its weights were trained on another range.

    Returns:
        A float32 tensor of the same shape.

    Raises:
        ValueError: the images have another rank, or not the channels that the model's preprocessing has.

    Reference: the original's `(x - 127.5) / 127.5`.
    """
    images = ops.cast(ops.convert_to_tensor(images), "float32")
    if len(images.shape) not in (3, 4):
        raise ValueError(f"Images must be (B, H, W, C) or (H, W, C). Received: shape={tuple(images.shape)}")
    if model is None:
        return (images - 127.5) / 127.5
    preprocessing = preprocessing_of(model)
    mean, std = preprocessing["mean"], preprocessing["std"]
    if len(set(zip(mean, std))) == 1:
        return (images - mean[0]) / std[0]
    if images.shape[-1] != len(mean):
        raise ValueError(f"The model's preprocessing is of {len(mean)} channels. Received: shape={tuple(images.shape)}")
    return (images - ops.convert_to_tensor(mean, "float32")) / ops.convert_to_tensor(std, "float32")


def preprocessing_of(model):
    """How images must be prepared for a model: what its checkpoint was trained on.

    It is the config of the model's layer `InputPreprocessing`, so it survives saving, `from_config` and `clone_model`;
    it is found inside another model too.

    Args:
        model: a model of this library, or one that has it inside.

    Returns:
        A dict: "mean" and "std" of each channel on the scale of [0, 255]; "resize", "stretch" or "shorter_side";
        "crop_fraction", the share of the resized image's side that is kept.

    Raises:
        ValueError: there is no such layer in the model.
    """
    for layer in _layers_of(model):
        config = layer.get_config() if type(layer).__name__ == "InputPreprocessing" else {}
        if "preprocessing" in config:
            return config["preprocessing"]
    raise ValueError(f"The model does not say how images must be prepared for it. Received: model={model.name!r}")


def _layers_of(model):
    for layer in model.layers:
        yield from _layers_of(layer) if isinstance(layer, keras.Model) else [layer]


def decode_predictions(predictions, top=5, names=None):
    """The best classes of each image, with their names.

    Args:
        predictions: `(B, classes)`, probabilities or logits.
        top: how many classes, best first.
        names: a list of names, as many as there are classes; or None, with 1,000 or 21,843 classes, for the published
            names of ImageNet and ImageNet-21k, which are downloaded once.

    Returns:
        For each image a list of `(class, name, score)`, the score as it is in `predictions`.

    Raises:
        ValueError: the predictions have another rank, or not as many classes as there are names.
        ConnectionError: the published names could not be downloaded.
    """
    predictions = ops.convert_to_tensor(predictions)
    if len(predictions.shape) != 2:
        raise ValueError(f"Predictions must be (B, classes). Received: shape={tuple(predictions.shape)}")
    classes = predictions.shape[1]
    if names is None:
        if classes not in _NAMES:
            raise ValueError(
                f"Names are published for {' and '.join(map(str, _NAMES))} classes; give a list as `names`. "
                f"Received: classes={classes}"
            )
        names = class_names(classes)
    if len(names) != classes:
        raise ValueError(f"There must be a name for each class. Received: classes={classes}, names={len(names)}")
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ValueError(f"`top` must be an integer of 1 or more. Received: top={top!r}")
    scores, indices = (ops.convert_to_numpy(x) for x in ops.top_k(predictions, min(top, classes)))
    return [
        [(int(index), names[index], float(score)) for index, score in zip(row_indices, row_scores)]
        for row_indices, row_scores in zip(indices, scores)
    ]


def class_names(classes):
    """The published names of 1,000 (ImageNet) or 21,843 (ImageNet-21k) classes, from the cache of weights."""
    with open(fetch(_NAMES[classes]), encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]
