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

from .shared import ROOT


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


def test_wheel_is_complete_and_installs(tmp_path):
    pytest.importorskip("setuptools")
    source = tmp_path / "source"  # a copy, because the build writes files next to the sources
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "keras_vit", source / "keras_vit", ignore=ignore)
    for name in ("setup.py", "setup.cfg", "README.md", "LICENSE", "keras_vit_cli.py"):
        shutil.copy(ROOT / name, source)
    _run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", tmp_path, cwd=source)
    (sdist,) = tmp_path.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip")
    _run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, sdist)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 2_000_000
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {str(path.relative_to(source)) for path in (source / "keras_vit").rglob("*.py")} <= names
    assert any(name.endswith("/LICENSE") for name in names)
    assert {"keras_vit/py.typed", "keras_vit_cli.py", "keras_vit/configs/finetune.py"} <= names
    _run(*pip, "install", "-q", "--no-deps", "--target", tmp_path / "site", wheel)
    code = "import keras_vit; print(keras_vit.__file__, keras_vit.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    printed = _run(sys.executable, "-c", code, cwd=tmp_path, env=environment).split()
    assert printed == [str(tmp_path / "site" / "keras_vit" / "__init__.py"), keras_vit.__version__]
    command = tmp_path / "site" / "bin" / "keras-vit"
    assert "keras-vit COMMAND" in _run(sys.executable, command, cwd=tmp_path, env=environment)
    overrides = ("--config.total_steps=-1", "--config.total_epochs=0")
    done = subprocess.run(
        [sys.executable, command, "train", "--config=finetune:ViT-Ti/16,digits", *overrides],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "error: " in done.stderr and "Traceback" not in done.stderr
