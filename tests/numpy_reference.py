"""The layers of a Transformer in NumPy, with which tests compare the layers of keras_vit.

The functions take a dict of weights, such as `weights_of(block)`, and the name of a layer in it.
"""

import math

import numpy as np

ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def weights_of(layer):
    """Maps paths in a layer or model, such as "attention/query/kernel", to weights in float64."""
    return {
        weight.path.rpartition(f"{layer.name}/")[2]: np.asarray(weight, "float64")
        for weight in layer.weights
    }


def to_patches(images, size):
    """Cuts images into square patches in raster order, of shape `(B, N, size * size * C)`."""
    batch, height, width, channels = images.shape
    x = images.reshape(batch, height // size, size, width // size, size, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, size * size * channels)


def prepend(tokens, x):
    """Concatenates tokens of shape `(1, K, D)` before the tokens of each example."""
    return np.concatenate([np.repeat(tokens, len(x), axis=0), x], axis=1)


def layer_norm(x, weights, name, epsilon=1e-6):
    deviation = np.sqrt(x.var(-1, keepdims=True) + epsilon)
    normalized = (x - x.mean(-1, keepdims=True)) / deviation
    return normalized * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def group_norm(x, epsilon):
    """Normalizes images with 32 groups of channels."""
    groups = x.reshape(*x.shape[:3], 32, -1)
    mean = groups.mean((1, 2, 4), keepdims=True)
    variance = groups.var((1, 2, 4), keepdims=True)
    return ((groups - mean) / np.sqrt(variance + epsilon)).reshape(x.shape)


def dense(x, weights, name):
    return x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0.0)


def project_to_heads(x, weights, name):
    """Projects tokens to queries, keys or values of shape `(B, heads, N, K)`."""
    projected = np.einsum("bnd,dhk->bhnk", x, weights[f"{name}/kernel"])
    if f"{name}/bias" in weights:
        projected += weights[f"{name}/bias"][:, None]
    return projected


def attend(query, key, value, weights, relative_scores=0.0):
    """Computes scaled dot-product attention and the projection of its output."""
    scores = query @ key.swapaxes(2, 3) + relative_scores
    scores = np.exp(scores / math.sqrt(query.shape[-1]))
    mixed = scores / scores.sum(-1, keepdims=True) @ value
    outputs = np.einsum("bhnk,hkd->bnd", mixed, weights["attention/out/kernel"])
    return outputs + weights.get("attention/out/bias", 0.0)


def relative_position_scores(query, table):
    """Returns the products of each query with the embedding of its distance to each key."""
    n = query.shape[2]
    distances = np.arange(n)[:, None] - np.arange(n) + n - 1
    return np.einsum("bhqk,qnk->bhqn", query, table[distances])


def transformer_block(tokens, weights, mlp="gelu_tanh", epsilon=1e-6):
    """Computes a Transformer block by the equations of the ViT paper.

    Optional norms, biases and scales are applied if `weights` contains them.
    """
    x = layer_norm(tokens, weights, "norm_1", epsilon)
    query, key, value = (
        project_to_heads(x, weights, f"attention/{name}") for name in ("query", "key", "value")
    )
    if "attention/query_norm/gamma" in weights:
        query = layer_norm(query, weights, "attention/query_norm", epsilon)
        key = layer_norm(key, weights, "attention/key_norm", epsilon)
    relative_scores = 0.0
    if "attention/relative_embedding" in weights:
        table = weights["attention/relative_embedding"]
        relative_scores = relative_position_scores(query, table)
    x = attend(query, key, value, weights, relative_scores)
    tokens = tokens + x * weights.get("layer_scale_1/scale", 1.0)
    x = layer_norm(tokens, weights, "norm_2", epsilon)
    hidden = dense(x, weights, "mlp_1")
    if mlp == "swiglu":
        hidden = ACTIVATIONS["silu"](dense(x, weights, "mlp_gate")) * hidden
    else:
        hidden = ACTIVATIONS[mlp](hidden)
    if "mlp_norm/gamma" in weights:
        hidden = layer_norm(hidden, weights, "mlp_norm", epsilon)
    return tokens + dense(hidden, weights, "mlp_2") * weights.get("layer_scale_2/scale", 1.0)
