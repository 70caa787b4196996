"""Tests of the annotations and docstrings of public names."""

import ast
import inspect
import re

import pytest

from .public_names import MODULES, public_objects
from .shared import ROOT

PACKAGE = ROOT / "keras_vit"


def _methods(public_class):
    """Yields `(name, function)` for the public methods and properties that a class defines."""
    for name, method in vars(public_class).items():
        for attribute in ("fget", "func", "__func__"):
            method = getattr(method, attribute, method)
        is_public = name in ("__init__", "__call__") or not name.startswith("_")
        if is_public and inspect.isfunction(method):
            is_written = method.__code__.co_filename.startswith(str(PACKAGE))
            if is_written:  # and not generated, such as by `dataclasses`
                yield name, method


def _functions_and_methods(module):
    """Yields `(name, function)` for the public functions and methods of a module."""
    for name, value in public_objects(module).items():
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            for method_name, method in _methods(value):
                yield f"{name}.{method_name}", method


@pytest.mark.parametrize("module", ("", *MODULES))
def test_public_functions_are_annotated(module):
    for name, function in _functions_and_methods(module):
        signature = inspect.signature(inspect.unwrap(function))
        annotations = [signature.return_annotation]
        for parameter in signature.parameters.values():
            if parameter.name not in ("self", "cls"):
                annotations.append(parameter.annotation)
        assert inspect.Signature.empty not in annotations, name


def _functions_of_file(file):
    """Yields `(function, docstring)` for every function. `__init__` has the docstring of its
    class."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            yield node, ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if getattr(method, "name", "") == "__init__":
                    yield method, ast.get_docstring(node) or ""


def _path_in_package(file):
    return str(file.relative_to(PACKAGE))


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=_path_in_package)
def test_docstrings_describe_only_existing_parameters(file):
    for function, text in _functions_of_file(file):
        section = re.search(r"^Args:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
        if section is None:
            continue
        headings = re.findall(r"^    (\**\w+(?:,\s+\**\w+)*):", section[1], re.MULTILINE)
        described = re.findall(r"\w+", " ".join(headings))
        parameters = {
            argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)
        }
        assert set(described) <= parameters, f"{function.name} has no {set(described) - parameters}"
        assert len(set(described)) == len(described), function.name
