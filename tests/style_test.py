"""The code passes ruff and mypy, and tests share constants."""

import subprocess
import sys

import pytest

from .shared import ROOT


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_ruff_passes(command):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_mypy_passes(tmp_path):
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--cache-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tests_share_their_constants():
    """Tests import `ROOT`, `GOLDEN` and `SIZES` from tests/shared.py."""
    copies = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in (ROOT / "tests").rglob("*_test.py")
        for line in path.read_text().splitlines()
        if line.startswith(("ROOT =", "GOLDEN =", "SIZES ="))
    ]
    assert not copies, copies
