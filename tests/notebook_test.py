"""The notebook runs from its first cell to its last, in an empty folder, and stands in the repository as it was run."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebooks" / "finetune.ipynb"


def _printed(notebook):
    return "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output
    )


def _check(notebook):
    """What every execution must print and draw."""
    printed = _printed(notebook)
    assert float(re.search(r"accuracy on the photos: ([\d.]+)", printed)[1]) >= 0.9
    for fruit in ("lime", "plum", "tomato"):
        assert re.search(rf"^{fruit}\.png: {fruit} 0\.\d+|^{fruit}\.png: {fruit} 1\.00", printed, re.MULTILINE), printed
    assert "served/fruits/1" in printed
    pictures = [o for cell in notebook.cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) == 2


@pytest.mark.filterwarnings("ignore")  # of the libraries that start the kernel; the notebook's own are outputs
def test_the_notebook_runs_offline_from_an_empty_folder(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    _check(notebook)
    # What TensorFlow says when it starts is no warning.
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    errors = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert not re.search("Warning|Error|Traceback", errors), errors


def test_the_stored_outputs_are_of_one_whole_execution_and_name_no_machine():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    _check(notebook)
    assert not re.search(r"/home/|/root|/tmp/(?!vit)|/Users/", json.dumps(notebook))
