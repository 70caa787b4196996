"""Tests that the package builds, installs and reports its version."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import keras_vit
from keras_vit.commands import info

from .shared import ROOT

PIP = (sys.executable, "-m", "pip")


def _run(*command, **options):
    """Runs a command and returns its stdout."""
    command = [*map(str, command)]
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def test_version_matches_changelog_and_metadata():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (?:Unreleased \()?(\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert keras_vit.__version__.removesuffix(".dev0") == newest[1]
    assert importlib.metadata.version("keras_vit") == keras_vit.__version__


def test_info_prints_versions_backend_and_devices():
    report = _run(sys.executable, "-m", "keras_vit", cwd=ROOT)
    assert report.startswith(f"keras_vit {keras_vit.__version__}, Python 3.")
    assert re.search(r"^backend: (tensorflow|jax) \(devices: .*\bcpu:0", report, re.MULTILINE)
    for name in ("keras", "ml-collections"):
        assert f"{name} {importlib.metadata.version(name)}" in report


def test_info_reports_damaged_packages(tmp_path, monkeypatch, capsys):
    (tmp_path / "keras-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    info.main()
    assert "installed: keras (damaged), " in capsys.readouterr().out


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Builds a wheel from an archive of the sources and returns its path."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, because the build writes files next to the sources
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "keras_vit", source / "keras_vit", ignore=ignore)
    for name in ("setup.py", "setup.cfg", "README.md", "LICENSE", "keras_vit_cli.py"):
        shutil.copy(ROOT / name, source)
    _run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", folder, cwd=source)
    (archive,) = folder.glob("*.tar.gz")
    _run(*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, archive)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_wheel_is_complete_and_small(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "keras_vit").rglob("*.py")} <= names
    assert {"keras_vit/py.typed", "keras_vit_cli.py"} <= names
    assert any(name.endswith("/LICENSE") for name in names)
    assert wheel.stat().st_size < 2_000_000


def test_wheel_installs_the_package_and_the_command(wheel, tmp_path):
    site = tmp_path / "site"
    _run(*PIP, "install", "-q", "--no-deps", "--target", site, wheel)
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(site)}}
    code = "import keras_vit; print(keras_vit.__file__, keras_vit.__version__)"
    printed = _run(sys.executable, "-c", code, **options).split()
    assert printed == [f"{site}/keras_vit/__init__.py", keras_vit.__version__]
    # This command reads a config file of the package, which refuses the dataset.
    train = ("train", "--config=finetune:ViT-Ti/16,digits")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        _run(sys.executable, site / "bin/keras-vit", *train, **options)
    assert raised.value.returncode == 2
    assert raised.value.stderr.splitlines()[-1].startswith("error: Table 4")
