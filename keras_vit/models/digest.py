"""Checksums that identify a model."""

import hashlib

import keras
import numpy as np


def weights_digest(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's weights, in hexadecimal."""
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


def model_digest(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's config and weights, in hexadecimal; of the weights alone without a config."""
    try:
        config = model.to_json()
    except (NotImplementedError, TypeError, ValueError):
        config = ""
    return hashlib.sha256((config + weights_digest(model)).encode()).hexdigest()
