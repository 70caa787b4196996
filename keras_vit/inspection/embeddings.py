"""Computes principal components of filters and patch tokens, and similarities between position
embeddings."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit.models.any_model import find_vision_transformer
from keras_vit.models.features import features


def position_similarity(model: keras.Model) -> np.ndarray:
    """Computes the cosine similarity of the position embeddings of every two patches (Figure 7,
    center; Figure 10).

    If each layer has its own position embeddings, this function compares those of the first layer.

    Args:
        model: a `keras.Model` that contains a Vision Transformer.

    Returns: float32 `(rows, columns, rows, columns)` in [-1, 1]. Entry `[i, j]` is the map of patch
        (i, j). An embedding of zeros has similarity 0 to all embeddings.

    Raises:
        ValueError: the model does not contain a Vision Transformer, or its images may have any
            size.
    """
    vit = find_vision_transformer(model)
    vit.check_grid()
    # Apply the layer to zeros to obtain the position embeddings of any kind.
    patches = math.prod(vit.grid)
    tokens = patches + vit.num_class_tokens * vit.arguments["class_token_position"]
    outputs = vit.positions[0](ops.zeros((1, tokens, vit.hidden_size)))
    outputs = ops.convert_to_numpy(ops.cast(outputs, "float32"))
    positions = outputs[0, -patches:]
    norms = np.linalg.norm(positions, axis=-1, keepdims=True)
    unit = positions / np.where(norms > 0, norms, 1)
    return (unit @ unit.T).reshape(*vit.grid, *vit.grid)


def filter_components(model: keras.Model, count: int = 28) -> np.ndarray:
    """Computes the first principal components of the patch embedding's filters (Figure 7, left).

    Args:
        model: a `keras.Model` that contains a Vision Transformer, not a hybrid.
        count: maximum number of components; small models have fewer.

    Returns:
        float32 `(count, P, P, C)`; each component is scaled to [0, 1].

    Raises:
        ValueError: the model does not contain a Vision Transformer, or is a hybrid.
    """
    vit = find_vision_transformer(model)
    if vit.stem is not None:
        raise ValueError(
            "`model` must not be a hybrid, which embeds patches of features. Received: "
            f"model={vit.name!r}"
        )
    filters = ops.convert_to_numpy(vit.patch_encoder.kernel).T.astype("float32")  # (D, P*P*C)
    components = _principal_components(filters, min(count, *filters.shape)).components_
    scaled = _unit_range(components, axis=-1).astype("float32")
    return scaled.reshape(-1, vit.patch_size, vit.patch_size, vit.image_shape[-1])


def patch_components(
    model: keras.Model, images: np.ndarray, layer: int = -1, count: int = 3
) -> np.ndarray:
    """Computes the first principal components of the patch tokens; three components can be shown as
    colors.

    Args:
        model, images: as in `attention_scores`; the components are computed over all images.
        layer: number of the layer whose output tokens are used, as in `keras_vit.features`.
        count: number of components.

    Returns:
        float32 `(B, rows, columns, count)`; each component is scaled to [0, 1] over all images.

    Raises:
        ValueError: `count` is below 1, or exceeds the number of patches in all images or the size
            of a token; or `keras_vit.features` rejects the arguments.
    """
    tokens = np.asarray(features(model, images, layer, tokens="patch", grid=True))
    samples = tokens.reshape(-1, tokens.shape[-1])
    values = _principal_components(samples, count).transform(samples)
    return _unit_range(values, axis=0).reshape(*tokens.shape[:-1], count).astype("float32")


def _principal_components(samples, count):
    most = min(samples.shape)
    if not 1 <= count <= most:
        raise ValueError(f"`count` must be in [1, {most}]. Received: count={count}")
    # scikit-learn takes about a second to import.
    from sklearn.decomposition import PCA

    return PCA(count, svd_solver="full").fit(samples)


def _unit_range(values, axis):
    lowest = values.min(axis, keepdims=True)
    highest = values.max(axis, keepdims=True)
    return (values - lowest) / np.where(highest > lowest, highest - lowest, 1)
