"""Tests that the notebooks run from start to end and that their stored outputs come from one full
run."""

import importlib.util
import json
import re
import shutil
import subprocess

import nbformat
import pytest
from nbclient import NotebookClient

from .shared import FAMILY_FILES, ROOT

NOTEBOOKS = ROOT / "docs" / "notebooks"
NOTEBOOK = NOTEBOOKS / "finetune.ipynb"
both = pytest.mark.parametrize("name", ["finetune", "dinov2"])


def _printed(notebook):
    return "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "text" in output
    )


def _check(notebook):
    """Checks the printed results and the images of finetune.ipynb."""
    printed = _printed(notebook)
    assert float(re.search(r"accuracy on the photos: ([\d.]+)", printed)[1]) >= 0.9
    for fruit in ("lime", "plum", "tomato"):
        assert re.search(
            rf"^{fruit}\.png: {fruit} 0\.\d+|^{fruit}\.png: {fruit} 1\.00", printed, re.MULTILINE
        ), printed
    assert "served/fruits/1" in printed
    pictures = [
        o
        for cell in notebook.cells
        for o in cell.get("outputs", [])
        if "image/png" in o.get("data", {})
    ]
    assert len(pictures) == 2


def _execute(path, folder):
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    # stderr may contain TensorFlow's startup log, but no warnings or errors.
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    errors = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert not re.search("Warning|Error|Traceback", errors), errors
    return notebook


@pytest.mark.filterwarnings("ignore")  # nbclient warns; `_execute` checks the notebook for warnings
def test_finetune_notebook_runs_and_prints_results(tmp_path):
    _check(_execute(NOTEBOOK, tmp_path))


@pytest.mark.filterwarnings("ignore")
def test_dinov2_notebook_runs_with_small_checkpoint(tmp_path):
    (tmp_path / "dinov2_small").mkdir()
    shutil.copy(
        FAMILY_FILES / "dinov2.safetensors", tmp_path / "dinov2_small" / "model.safetensors"
    )
    shutil.copy(FAMILY_FILES / "dinov2.config.json", tmp_path / "dinov2_small" / "config.json")
    assert "accuracy after fine-tuning" in _printed(_execute(NOTEBOOKS / "dinov2.ipynb", tmp_path))


@both
@pytest.mark.parametrize(
    "installed, extras", [(["tensorflow"], ""), ([], ",cpu"), (["tensorflow", "keras_vit"], None)]
)
def test_first_cell_installs_missing_packages(name, installed, extras, monkeypatch):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    code = next(cell.source for cell in notebook.cells if cell.cell_type == "code")
    commands = []
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda module: module if module in installed else None
    )
    monkeypatch.setattr(subprocess, "run", lambda command, **options: commands.append(command))
    exec(code, {})
    requirements = [command[-1].split(" @ ")[0] for command in commands]
    own = {"finetune": "plots", "dinov2": "plots,hub"}[name]
    assert requirements == ([] if extras is None else [f"keras_vit[{own}{extras}]"])


@both
def test_stored_outputs_come_from_one_full_run(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    if name == "finetune":
        _check(notebook)
    assert not re.search(r"/home/|/root|/tmp/(?!vit)|/Users/", json.dumps(notebook))
    # The Colab badge opens this notebook.
    assert f"/docs/notebooks/{name}.ipynb)" in notebook.cells[0].source
