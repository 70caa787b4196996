"""Prints the versions, backend, devices and environment variables that a bug report needs.

keras-vit info
"""

import importlib.metadata
import os
import platform

import keras

import keras_vit

# Packages to report. An environment needs only one of the TensorFlow packages.
PACKAGES = (
    "keras",
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-tpu",
    "jax",
    "jaxlib",
    "libtpu",
    "numpy",
    "tensorflow-datasets",
    "scikit-learn",
    "ml-collections",
    "matplotlib",
    "onnx",
    "tf2onnx",
    "onnxruntime",
)
# Environment variables that select or configure backends and devices.
VARIABLES = (
    "KERAS_BACKEND",
    "CUDA_VISIBLE_DEVICES",
    "JAX_PLATFORMS",
    "XLA_FLAGS",
    "TF_CONFIG",
    "TPU_NAME",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_XLA_FLAGS",
    "OMP_NUM_THREADS",
)


def define_flags():
    """Defines no flags."""


def main():
    try:
        devices = ", ".join(map(str, keras.distribution.list_devices())) or "none"
    except Exception as error:  # the command must not fail
        devices = f"{type(error).__name__}: {error}"
    versions = {name: _find_version(name) for name in PACKAGES}
    print(
        f"keras_vit {keras_vit.__version__}, Python {platform.python_version()}, "
        f"{platform.platform()}"
    )
    print(f"backend: {keras.backend.backend()} (devices: {devices}), {os.cpu_count()} processors")
    installed = [f"{name} {version}" for name, version in versions.items() if version]
    print(f"installed: {', '.join(installed)}")
    print("not installed: " + ", ".join(name for name in PACKAGES if not versions[name]))
    variables = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    print("environment: " + (", ".join(variables) or "none of the relevant variables is set"))


def _find_version(name):
    """Returns the version of a package, or None if it is not installed."""
    try:
        return importlib.metadata.version(name) or "(damaged)"
    except importlib.metadata.PackageNotFoundError:
        return None
