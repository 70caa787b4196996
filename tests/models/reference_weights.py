"""The random weights and images for which the reference implementations computed outputs."""

import zlib

import numpy as np

from keras_vit.checkpoints.names import canonical_variables


def fill_with_reference_weights(model):
    """Fills a model with the reference weights. A hash of each array's name seeds its values."""
    for name, variable in canonical_variables(model).items():
        random = np.random.RandomState(zlib.crc32(name.encode()))
        values = random.standard_normal(variable.shape).astype("float32")
        if name.endswith("scale"):
            values = 1 + 0.1 * values
        elif name.endswith("bias"):
            values = 0.1 * values
        elif name.endswith("kernel"):
            values = 0.05 * values
        else:
            values = 0.5 * values
        variable.assign(values)


def reference_images(model, count):
    shape = (count, *model.input_shape[1:])
    return np.random.RandomState(0).uniform(-1, 1, shape).astype("float32")
