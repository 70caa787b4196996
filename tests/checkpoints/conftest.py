"""Fixtures for golden files, small models and checkpoint files."""

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.names import canonical_variables

from ..shared import GOLDEN, GOLDEN_SIZES, read_arrays


@pytest.fixture
def golden_files():
    """Returns the folder of the golden files."""
    return GOLDEN


@pytest.fixture
def small():
    """Returns a function that builds a small model. Its keyword arguments override the defaults."""

    def build(**arguments):
        defaults = {**GOLDEN_SIZES, "input_shape": (32, 32, 3)}
        return keras_vit.VisionTransformer(**{**defaults, **arguments})

    return build


@pytest.fixture
def values():
    """Returns a function that reads a model's weights into a dict from `vit_jax` names to
    arrays."""

    def read(model):
        return {name: np.asarray(variable) for name, variable in canonical_variables(model).items()}

    return read


@pytest.fixture
def arrays():
    """Returns a function that reads an .npz file into a dict."""

    return read_arrays


@pytest.fixture
def write_safetensors():
    """Returns a function that writes arrays to a .safetensors file.

    Its argument `codes` maps names to dtype codes, such as "BF16" for bfloat16 values stored in a
    uint16 array.
    """

    def write(path, tensors, codes=None):
        import json

        header = {}
        data = b""
        for name, tensor in tensors.items():
            code = (codes or {}).get(
                name, {"float32": "F32", "float16": "F16", "float64": "F64"}.get(str(tensor.dtype))
            )
            first = len(data)
            data = data + np.ascontiguousarray(tensor).tobytes()
            header[name] = {
                "dtype": code,
                "shape": list(tensor.shape),
                "data_offsets": [first, len(data)],
            }
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        return path

    return write
