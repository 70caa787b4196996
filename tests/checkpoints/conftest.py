"""Fixtures for the small models of the golden files."""

from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.names import canonical_variables

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def golden_files():
    """Returns the folder of the golden files."""
    return GOLDEN


@pytest.fixture
def small():
    """Builds the model of the golden files; keyword arguments override its config."""

    def build(**arguments):
        defaults = {
            "input_shape": (32, 32, 3),
            "patch_size": 8,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "mlp_dim": 128,
            "classes": 10,
        }
        return keras_vit.VisionTransformer(**{**defaults, **arguments})

    return build


@pytest.fixture
def values():
    """Returns a model's weights as NumPy arrays, keyed by their `vit_jax` names."""

    def read(model):
        return {name: np.asarray(variable) for name, variable in canonical_variables(model).items()}

    return read


@pytest.fixture
def arrays():
    """Reads an .npz file into a dict, so that a test can modify and rewrite it."""

    def read(path):
        with np.load(path) as file:
            return {name: file[name] for name in file.files}

    return read


@pytest.fixture
def write_safetensors():
    """Writes arrays to a .safetensors file; `codes` overrides dtype codes by name, such as "BF16" for uint16 data."""

    def write(path, tensors, codes=None):
        import json

        header, data = {}, b""
        for name, tensor in tensors.items():
            code = (codes or {}).get(
                name, {"float32": "F32", "float16": "F16", "float64": "F64"}.get(str(tensor.dtype))
            )
            first, data = len(data), data + np.ascontiguousarray(tensor).tobytes()
            header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [first, len(data)]}
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        return path

    return write
