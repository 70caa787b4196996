"""Tests of the docstrings, annotations and pages of public names, and of the site."""

import ast
import inspect
import os
import re
import subprocess
import sys

import pytest

import keras_vit

from .public_names import MODULES, public_objects
from .shared import ROOT

PACKAGE = ROOT / "keras_vit"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Builds the site and returns its folder."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        # With --quiet, --strict would ignore warnings.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _page(site, module, name):
    """Returns the HTML page of a name. Names that differ only in case share a page."""
    folder = site / "reference" / module.replace(".", "/")
    (page,) = [path for path in folder.iterdir() if path.name.lower() == name.lower()]
    return (page / "index.html").read_text()


@pytest.mark.parametrize("module", MODULES)
def test_module_names_have_page_and_index_entry(site, module):
    index = (site / "reference" / module.replace(".", "/") / "index.html").read_text()
    names = public_objects(module)
    assert names
    for name in names:
        page = _page(site, module, name)
        title = re.search(
            rf"<h1[^>]*>(?:(?!</h1>).)*keras_vit\.(?:{module}\.)?{name}\b", page, re.DOTALL
        )
        assert title, f"{module}.{name}"
        text = page[title.end() :].split('class="md-footer"')[0]
        assert re.search(r"<p>\S|doc-contents", text), f"{module}.{name} has no docstring"
        assert f"<code>{name}</code>" in index, f"{module}.{name}"


def test_package_names_have_pages(site):
    folders = ("models", "families", "layers", "preprocessing", "cost", "keras_vit")
    for name in set(keras_vit.__all__) - set(MODULES):
        pages = [site / "reference" / folder / name / "index.html" for folder in folders]
        assert any(page.exists() for page in pages), name


def test_site_loads_no_external_resources(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 200
    for page in pages:
        html = page.read_text()
        assert not re.findall(r"<(?:script|img|iframe)[^>]*src=\"?(?:https?:)?//[^>]*", html), page
        assert not re.findall(r"<link[^>]*href=\"?(?:https?:)?//[^>]*", html), page
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//|@import", style.read_text()), style


def test_readme_links_point_to_site_pages(site):
    home = (site / "index.html").read_text()
    for target in ("your_photos/", "contributing/", "license/", "images/predictions.png"):
        assert f'"{target}"' in home, target
    assert ".md" not in re.findall(r'<a href="([^"]*)"', home)


def _methods(public_class):
    """Yields `(name, function)` for the public methods and properties that a class defines."""
    for name, method in vars(public_class).items():
        for attribute in ("fget", "func", "__func__"):
            method = getattr(method, attribute, method)
        is_public = name in ("__init__", "__call__") or not name.startswith("_")
        if is_public and inspect.isfunction(method):
            is_generated = not method.__code__.co_filename.startswith(str(PACKAGE))
            if not is_generated:  # such as by `dataclasses`
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


def test_mypy_passes(tmp_path):
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--cache-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: file.stem)
def test_docstrings_describe_only_existing_parameters(file):
    for function, text in _functions_of_file(file):
        section = re.search(r"^Args:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
        if section is None:
            continue
        described = re.findall(r"^    (\**\w+(?:,\s+\**\w+)*):", section[1], re.MULTILINE)
        described = re.findall(r"\w+", " ".join(described))
        parameters = {
            argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)
        }
        assert set(described) <= parameters, f"{function.name} has no {set(described) - parameters}"
        assert len(set(described)) == len(described), function.name


def test_pages_show_examples_and_parameter_lists(site):
    for module, name, content in (
        ("families", "ViT_B16", "ViT_B16(classes=37)"),
        ("keras_vit", "features", "features(model, images)"),
        ("optimizers", "AdamW", "beta_1, beta_2"),
        ("models", "AxialVisionTransformer", "remat, name, dtype"),
        ("models", "VisionTransformer", '"augreg:&lt;file name&gt;"'),
    ):
        text = re.sub(r"<[^>]*>", "", _page(site, module, name))
        assert content in text, name
