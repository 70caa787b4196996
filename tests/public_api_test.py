"""Tests of the docstrings, annotations and pages of public names, and of the site."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys

import pytest

import keras_vit

from .shared import ROOT

PACKAGE = ROOT / "keras_vit"
# Public modules that are not in `keras_vit.__all__`.
FURTHER = ("training.plots", "evaluation.plots", "inspection.plots", "inspection.report")
MODULES = (
    *(name for name in keras_vit.__all__ if inspect.ismodule(getattr(keras_vit, name))),
    *FURTHER,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        # With --quiet, --strict would ignore warnings.
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--site-dir",
            folder,
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _public_names(name):
    module = importlib.import_module(f"keras_vit.{name}")
    if hasattr(module, "__all__"):
        return module.__all__
    return [
        public
        for public, value in vars(module).items()
        if not public.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def _page(site, module, name):
    """Returns the HTML page of a name. Names that differ only in case share a page."""
    folder = site / "reference" / module.replace(".", "/")
    (page,) = [path for path in folder.iterdir() if path.name.lower() == name.lower()]
    return (page / "index.html").read_text()


@pytest.mark.parametrize("module", MODULES)
def test_module_names_have_page_and_index_entry(site, module):
    index = (site / "reference" / module.replace(".", "/") / "index.html").read_text()
    names = _public_names(module)
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
    for name in keras_vit.__all__:
        homes = ("models", "families", "layers", "preprocessing", "cost", "keras_vit")
        assert name in MODULES or any(
            (site / "reference" / home / name / "index.html").exists() for home in homes
        ), name


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


def _callables(module):
    """Yields `(name, function)` for the public functions of a module and the public methods of its
    classes."""
    for name in _public_names(module) if module else keras_vit.__all__:
        value = getattr(importlib.import_module(f"keras_vit.{module}".rstrip(".")), name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            for method, function in vars(value).items():
                function = (
                    getattr(function, "fget", None) or getattr(function, "func", None) or function
                )
                function = getattr(function, "__func__", function)
                written = inspect.isfunction(function) and function.__code__.co_filename.startswith(
                    str(PACKAGE)
                )
                if written and (method in ("__init__", "__call__") or not method.startswith("_")):
                    yield f"{name}.{method}", function


@pytest.mark.parametrize("module", ("", *MODULES))
def test_public_functions_are_annotated(module):
    missing = []
    for name, function in _callables(module):
        signature = inspect.signature(inspect.unwrap(function))
        parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
        if signature.return_annotation is signature.empty or any(
            p.annotation is p.empty for p in parameters
        ):
            missing.append(name)
    assert not missing


def test_mypy_passes(tmp_path):
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--cache-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _functions(tree, of=None):
    """Yields `(function, docstring)` for every function. `__init__` has the docstring of its
    class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, of=node)
        elif isinstance(node, ast.FunctionDef):
            yield node, ast.get_docstring(of if of and node.name == "__init__" else node) or ""
            yield from _functions(node)


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: file.stem)
def test_docstrings_describe_only_existing_parameters(file):
    for function, text in _functions(ast.parse(file.read_text())):
        section = re.search(r"^Args:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
        if section is None:
            continue
        described = re.findall(r"^    (\**\w+(?:,\s+\**\w+)*):", section[1], re.MULTILINE)
        described = [name.lstrip("*") for names in described for name in re.split(r",\s+", names)]
        parameters = {
            argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)
        }
        assert set(described) <= parameters, f"{function.name} has no {set(described) - parameters}"
        assert len(set(described)) == len(described), function.name


def test_pages_show_public_names_and_examples(site):
    page = _page(site, "families", "ViT_B16")
    assert re.search(r"<h1[^>]*>(?:(?!</h1>).)*keras_vit\.ViT_B16\b", page, re.DOTALL)
    assert "ViT_B16(classes=37)" in re.sub(r"<[^>]*>", "", page)
    assert "features(model, images)" in re.sub(r"<[^>]*>", "", _page(site, "keras_vit", "features"))


def test_pages_render_parameter_lists(site):
    page = _page(site, "optimizers", "AdamW")
    assert "<code>beta_1, beta_2</code>" in page
    page = _page(site, "models", "AxialVisionTransformer")
    assert "remat, name, dtype</code>" in page
    page = _page(site, "models", "VisionTransformer")
    assert '"augreg:&lt;file name&gt;"' in page and "patch_size" in page
