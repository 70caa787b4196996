"""Tests of the modules that `import keras_vit` loads, and of the error if the backend is not
installed."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

import keras_vit

from .shared import ROOT

BACKENDS = ("tensorflow", "jax")
# Modules that are imported when they are first used.
LAZY = (
    "cost",
    "data",
    "evaluation",
    "export",
    "inspection",
    "losses",
    "optimizers",
    "recipes",
    "tasks",
    "tpu",
    "training",
)

PRINT_ADDED_MODULES = """
import json, sys
import keras
before = set(sys.modules)
import keras_vit
keras_vit.ViT_B16, keras_vit.layers.Patches, keras_vit.checkpoints.load
# Loading a .keras file needs these classes to be registered.
assert all(map(keras.saving.get_registered_object, ("keras_vit>Backbone", "keras_vit>FeatureModel")))
print(json.dumps([sorted(set(sys.modules) - before), "tensorflow" in sys.modules, keras.backend.backend()]))
"""
# Simulates a machine without a package.
HIDE_PACKAGE = """
import sys, importlib.abc
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "{0}":
            raise ModuleNotFoundError("No module named {0}", name=name)
sys.meta_path.insert(0, Hide())
import keras_vit
"""


def _python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_import_adds_no_other_packages(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    done = _python(PRINT_ADDED_MODULES, KERAS_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    added, has_tensorflow, used = json.loads(done.stdout)
    assert used == backend
    assert [name for name in added if name.split(".")[0] != "keras_vit"] == []
    lazy = tuple(f"keras_vit.{name}" for name in LAZY)
    assert not [name for name in added if name.startswith(lazy)]
    assert has_tensorflow == (backend == "tensorflow")


@pytest.mark.parametrize("backend", BACKENDS)
def test_missing_backend_error_shows_install_command(backend):
    done = _python(HIDE_PACKAGE.format(backend), KERAS_BACKEND=backend)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"{backend} is not installed" in last
    assert 'pip install "keras_vit[cpu]"' in last and "keras_vit[jax]" in last


def test_lazy_names_are_importable():
    for name in LAZY:
        assert getattr(keras_vit, name).__name__ == f"keras_vit.{name}"
    for name in ("FeatureModel", "enable_lora", "features", "flops", "freeze"):
        assert getattr(keras_vit, name).__name__ == name
    assert {*LAZY, "features"} <= set(dir(keras_vit))
    with pytest.raises(AttributeError, match="has no attribute 'modles'"):
        keras_vit.modles  # noqa: B018
