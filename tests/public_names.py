"""Finds the public names of the package."""

import importlib
import inspect

import keras_vit

# Public modules, some of which are not in `keras_vit.__all__`.
MODULES = (
    *(name for name in keras_vit.__all__ if inspect.ismodule(getattr(keras_vit, name))),
    *("training.plots", "evaluation.plots", "inspection.plots", "inspection.report"),
)


def public_objects(module=""):
    """Maps the public names of a module, or of the package itself, to their values."""
    module = importlib.import_module(f"keras_vit.{module}".rstrip("."))
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    ]
    return {name: getattr(module, name) for name in names}
