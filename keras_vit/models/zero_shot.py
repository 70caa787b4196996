"""Zero-shot classification with CLIP and SigLIP, from text embeddings of class names."""

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.models.any_model import check_images_known, output_shape_of
from keras_vit.models.two_towers import TwoTowers
from keras_vit.models.zero_shot_words import class_embeddings, scale_and_bias_of
from keras_vit.text import TEMPLATES

_NEEDED = ("names", "embeddings", "scale")


@serializable
class ClassEmbeddings(BaseLayer):
    """Computes scaled cosine similarities of image embeddings to K class embeddings.

    Maps `(B, E)` to float32 logits `(B, K)`. The columns of the weight `kernel`, `(E, K)`, are the
    normalized class embeddings, which `zero_shot` assigns.

    Args:
        class_names: K names.
        scale, bias: the logits are `scale * cosine + bias`.
        logits_activation: "softmax" or "sigmoid", the function that turns the logits into
            probabilities. The layer records it but does not apply it.

    Reference: CLIP (Radford et al., 2021) and SigLIP (Zhai et al., 2023).
    """

    def __init__(self, class_names, scale, bias=0.0, logits_activation="softmax", **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32", "trainable": False})
        class_names = list(class_names)
        self._keep_arguments(locals())

    def build(self, input_shape):
        shape = (input_shape[-1], len(self.class_names))
        self.kernel = self.add_weight(
            name="kernel", shape=shape, initializer="zeros", trainable=False
        )

    def call(self, embeddings):
        return self.scale * ops.matmul(ops.normalize(embeddings), self.kernel) + self.bias

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], len(self.class_names))


def zero_shot(
    model: keras.Model,
    source: str | os.PathLike | Sequence[str],
    templates: Sequence[str] = TEMPLATES,
    tokenizer: Any = None,
) -> keras.Model:
    """Builds a classifier from class names, or from text embeddings of the classes.

    The classifier shares the tower's weights. It can be evaluated, saved and exported like any
    other model. If `source` contains a `bias`, as for SigLIP, the probabilities are the sigmoid of
    each logit; otherwise, as for CLIP, the softmax of the logits.

    Args:
        model: a model with both towers, see `TwoTowers`. For an .npz file, a model that returns
            image embeddings `(B, E)` also works: CLIP with its head (the projection), SigLIP
            without a head.
        source: list of class names, or path of an .npz file with the arrays `names`, K strings;
            `embeddings` `(K, E)`, which need not be normalized; `scale`, the factor of the cosine
            (the exponential of `logit_scale`); and optionally `bias`. `scale` and `bias` are single
            numbers.
        templates: texts with {} in place of the class name, such as `text.CLIP_TEMPLATES`, whose
            embeddings are averaged for each class. Not used for an .npz file.
        tokenizer: a `text.Tokenizer`, or the path or repository of one; None for the one next to
            the weights. Not used for an .npz file.

    Returns:
        A `keras.Model` that maps images to float32 logits `(B, K)`.

    Raises:
        ValueError: names are given without a text tower or tokenizer, or are empty or repeated; the
            file cannot be read, an array is missing or invalid, or the embeddings do not match the
            model.
    """
    if isinstance(source, str | os.PathLike):
        names, embeddings, scale, bias = _read(source)
    else:
        names = list(source)
        embeddings = class_embeddings(model, names, templates, tokenizer)
        scale, bias = scale_and_bias_of(model)
    model = model.image if isinstance(model, TwoTowers) else model
    shape = output_shape_of(model)
    if len(shape) != 2 or shape[1] != embeddings.shape[1]:
        raise ValueError(
            f"The model must return image embeddings (B, {embeddings.shape[1]}), as wide as the "
            "text embeddings, which must come from the text tower of the same model. Received: "
            f"outputs of shape {shape} from {model.name!r}, text embeddings from {source}"
        )
    images = keras.Input(check_images_known(model))
    activation = "softmax" if bias is None else "sigmoid"
    head = ClassEmbeddings(names, scale, bias or 0.0, activation, name="class_embeddings")
    classifier = keras.Model(images, head(model(images)), name=f"{model.name}_zero_shot")
    head.kernel.assign((embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)).T)
    return classifier


def class_names_of(model: keras.Model) -> list[str] | None:
    """Returns the class names of a model that `zero_shot` built, or None for other models."""
    last = model.layers[-1] if getattr(model, "layers", None) else None
    return last.class_names if isinstance(last, ClassEmbeddings) else None


def _read(source):
    """Returns the names, embeddings, scale and bias (or None) in an .npz file."""
    try:
        with np.load(source, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # damaged archives raise many exception types
        raise ValueError(
            f"The file of class embeddings must be an .npz file ({error}). Received: {source}"
        ) from error
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise ValueError(
            f"The file must contain the arrays {', '.join(_NEEDED)}. Received: {source} without "
            f"{', '.join(missing)}"
        )
    names = arrays["names"]
    embeddings = arrays["embeddings"]
    if names.ndim != 1 or names.dtype.kind != "U" or embeddings.shape[:-1] != names.shape:
        raise ValueError(
            "`names` must be K strings, and `embeddings` must have K rows. Received: names of "
            f"shape {names.shape} and dtype {names.dtype}, embeddings of shape {embeddings.shape} "
            f"in {source}"
        )
    scale = arrays["scale"].item()
    bias = arrays["bias"].item() if "bias" in arrays else None
    if not scale > 0:
        raise ValueError(
            "`scale` must be above 0, because it is the exponential of `logit_scale`. Received: "
            f"{scale=} in {source}"
        )
    embeddings = embeddings.astype("float64")
    if not np.isfinite(embeddings).all() or not embeddings.any(1).all():
        raise ValueError(
            f"`embeddings` must be finite, and none may be all zeros. Received: {source}"
        )
    return names.tolist(), embeddings, scale, bias
