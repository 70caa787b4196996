"""The package builds, installs and reports its version."""

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
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=True, **options
    ).stdout


def test_version_matches_changelog_and_metadata():
    number = re.fullmatch(r"(\d+\.\d+\.\d+)(\.dev0)?", keras_vit.__version__)
    newest = re.search(
        r"^## (?:Unreleased \()?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert number[1] == newest[1]
    assert importlib.metadata.version("keras_vit") == keras_vit.__version__
    assert not [
        line
        for line in (ROOT / "setup.cfg").read_text().splitlines()
        if re.match(r"version = \d", line)
    ]


def test_info_prints_versions_backend_and_devices():
    report = _run(sys.executable, "-m", "keras_vit", cwd=ROOT)
    assert report.startswith(f"keras_vit {keras_vit.__version__}, Python 3.")
    assert re.search(r"^backend: (tensorflow|jax) \(devices: .*\bcpu:0", report, re.MULTILINE)
    assert f"keras {importlib.metadata.version('keras')}, " in report
    assert f"ml-collections {importlib.metadata.version('ml-collections')}" in report
    assert len(report.splitlines()) == 5
    assert _run(sys.executable, "-m", "keras_vit", "info", cwd=ROOT) == report


def test_wheel_is_complete_and_installs(tmp_path):
    pytest.importorskip("setuptools")
    source = tmp_path / "source"  # a copy, because the build writes files next to the sources
    shutil.copytree(
        ROOT / "keras_vit", source / "keras_vit", ignore=shutil.ignore_patterns("__pycache__")
    )
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
    assert done.returncode == 2 and "error: " in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )
