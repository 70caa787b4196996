"""Skips the tests in this folder on other backends than JAX."""

import keras

if keras.backend.backend() != "jax":
    collect_ignore_glob = ["*_test.py"]  # tests/jax_backend_test.py runs these files on JAX
