"""Prints what a bug report needs: versions, the backend, its devices, and what is installed.

keras-vit info
"""

import importlib.metadata
import os
import platform

import keras

import keras_vit

# What the package or one of its extras uses; of TensorFlow one wheel is installed.
PACKAGES = (
    *("keras", "tensorflow", "tensorflow-cpu", "tensorflow-tpu", "jax", "jaxlib", "libtpu", "numpy"),
    *("tensorflow-datasets", "scikit-learn", "ml-collections", "matplotlib", "onnx", "tf2onnx", "onnxruntime"),
)
# Variables of the environment that change what runs where.
VARIABLES = (
    *("KERAS_BACKEND", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "XLA_FLAGS", "TF_CONFIG", "TPU_NAME"),
    *("TF_FORCE_GPU_ALLOW_GROWTH", "TF_XLA_FLAGS", "OMP_NUM_THREADS"),
)


def define_flags():
    """Has no flags."""


def main():
    print(f"keras_vit {keras_vit.__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(f"backend: {keras.backend.backend()} (devices: {_devices()}), {os.cpu_count()} processors")
    versions = {name: _version(name) for name in PACKAGES}
    print("installed: " + ", ".join(f"{name} {version}" for name, version in versions.items() if version))
    print("not installed: " + ", ".join(name for name, version in versions.items() if not version))
    variables = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    print("environment: " + (", ".join(variables) or "none of the variables that matter is set"))


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices():
    """The devices of the backend by name, or why there are none: a report must not end in a traceback."""
    try:
        return ", ".join(map(str, keras.distribution.list_devices())) or "none"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
