"""Tests of the site, which has a page for each public name."""

import os
import re
import subprocess
import sys

import pytest

import keras_vit

from .public_names import MODULES, public_objects
from .shared import ROOT


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
