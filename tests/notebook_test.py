"""Tests that the notebooks run from start to end and that their stored outputs come from one full
run."""

import importlib.util
import json
import re
import subprocess

import nbformat
import pytest
from nbclient import NotebookClient

from .shared import ROOT, copy_model_folder

NOTEBOOKS = ROOT / "docs" / "notebooks"
both_notebooks = pytest.mark.parametrize("name", ["finetune", "dinov2"])


def _read(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def _outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def _printed(notebook, stream="stdout"):
    return "".join(output.text for output in _outputs(notebook) if output.get("name") == stream)


def _check(notebook):
    """Checks the printed results and the images of finetune.ipynb."""
    printed = _printed(notebook)
    assert float(re.search(r"accuracy on the photos: ([\d.]+)", printed)[1]) >= 0.9
    for fruit in ("lime", "plum", "tomato"):
        assert re.search(rf"^{fruit}\.png: {fruit} [01]\.\d+", printed, re.MULTILINE), printed
    assert "served/fruits/1" in printed
    pictures = [output for output in _outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(pictures) == 2


def _execute(name, folder):
    notebook = _read(name)
    resources = {"metadata": {"path": folder}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    # stderr may contain TensorFlow's startup log, but no warnings or errors.
    errors = _printed(notebook, "stderr")
    assert not re.search("Warning|Error|Traceback", errors), errors
    return notebook


@pytest.mark.filterwarnings("ignore")  # nbclient warns; `_execute` checks the notebook for warnings
def test_finetune_notebook_runs_and_prints_results(tmp_path):
    _check(_execute("finetune", tmp_path))


@pytest.mark.filterwarnings("ignore")
def test_dinov2_notebook_runs_with_small_checkpoint(tmp_path):
    copy_model_folder("dinov2", tmp_path / "dinov2_small")
    assert "accuracy after fine-tuning" in _printed(_execute("dinov2", tmp_path))


@both_notebooks
@pytest.mark.parametrize(
    ("installed", "extras"),
    [(["tensorflow"], ""), ([], ",cpu"), (["tensorflow", "keras_vit"], None)],
)
def test_first_cell_installs_missing_packages(name, installed, extras, monkeypatch):
    notebook = _read(name)
    code = next(cell.source for cell in notebook.cells if cell.cell_type == "code")
    commands = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: module in installed or None)
    monkeypatch.setattr(subprocess, "run", lambda command, **options: commands.append(command))
    exec(code, {})
    requirements = [command[-1].split(" @ ")[0] for command in commands]
    own = {"finetune": "plots", "dinov2": "plots,hub"}[name]
    assert requirements == ([] if extras is None else [f"keras_vit[{own}{extras}]"])


@both_notebooks
def test_stored_outputs_come_from_one_full_run(name):
    notebook = _read(name)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    if name == "finetune":
        _check(notebook)
    assert not re.search(r"/home/|/root|/tmp/(?!vit)|/Users/", json.dumps(notebook))
    # The Colab badge opens this notebook.
    assert f"/docs/notebooks/{name}.ipynb)" in notebook.cells[0].source
