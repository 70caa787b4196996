"""README.md and the pages of docs/ say what is so: tables, names, links, commands and code.

Above each block of Python is a comment for the test: `<!-- test: run -->`, `<!-- test: run after: CODE -->` with what
the reader is taken to have, or `<!-- test: not run, REASON -->`. All blocks must at least parse.
"""

import ast
import re
from pathlib import Path

import pytest

import keras_vit
from keras_vit.models import variants

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text() for page in PAGES)
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def _python_blocks(page):
    """The marker and the code of every block."""
    blocks = re.findall(r"(?:<!-- test: (.*?) -->\n)?```python\n(.*?)```", page.read_text(), re.DOTALL)
    return [pytest.param(marker, code, id=f"{page.stem}{i}") for i, (marker, code) in enumerate(blocks)]


def test_the_table_of_models_has_every_size_and_its_parameters():
    from keras_vit.layers.resnet_stem import stem_output_channels, stem_output_side

    rows = re.findall(r"^\| `(\w*ViT_\w+)` \| (.*) \|$", TEXT, re.MULTILINE)
    names = {name for name, value in vars(variants).items() if callable(value) and "ViT_" in name}
    assert {name for name, _ in rows} == names
    for name, row in rows:
        patch, d, layers, m, _, stem, count = (cell.strip() for cell in row.split("|"))
        patch, d, layers, m = int(patch), int(d), int(layers), int(m)
        side, channels, parameters = 224, 3, 0
        if stem:
            blocks = () if stem == "root only" else tuple(map(int, stem.strip("()").split(",")))
            side, channels = stem_output_side(224, blocks), stem_output_channels(blocks)
            parameters = {(): 9_536, (2, 2, 2, 2): 13_946_176, (3, 4, 9): 11_894_848, (3, 4, 6, 3): 23_508_032}[blocks]
        tokens = (side // patch) ** 2 + 1
        parameters += patch**2 * channels * d + d + d + tokens * d + layers * (4 * d * d + 2 * d * m + 9 * d + m)
        parameters += 2 * d + 1000 * d + 1000
        assert count == f"{parameters:,}", name


@pages
def test_what_a_page_names_exists(page):
    text = page.read_text()
    for name in set(re.findall(r"\bkeras_vit\.(\w+)", text)) - {"git"}:
        assert hasattr(keras_vit, name), name
    for path in set(re.findall(r"`((?:keras_vit|experiments|tests)/[\w/.]+)`", text)):
        assert (ROOT / path).exists(), path


@pages
def test_a_link_leads_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?://)([^)#]*)(?:#[\w-]+)?\)", text):
        assert (page.parent / link).exists(), link


def test_every_page_is_linked_from_the_readme():
    linked = set(re.findall(r"\]\(docs/([\w-]+)\.md\)", PAGES[0].read_text()))
    assert linked == {page.stem for page in (ROOT / "docs").glob("*.md")}


def test_the_readme_is_two_screens():
    assert len(PAGES[0].read_text().splitlines()) <= 150


@pages
def test_a_command_names_a_script_and_flags_that_are_there(page):
    commands = [c for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL) for c in _commands(block)]
    for script, arguments in commands:
        assert (ROOT / script).exists(), script
        source = "".join(file.read_text() for file in (ROOT / "experiments").glob("*.py"))
        for flag in re.findall(r"--(\w+)", arguments):
            assert flag == "config" or f'"{flag}"' in source, f"{script} --{flag}"


def _commands(block):
    """The Python scripts of a block and the arguments of each."""
    for line in block.replace("\\\n", " ").splitlines():
        yield from re.findall(r"python ((?:experiments|tests)/\S+\.py)([^&|]*)", line)


@pytest.mark.parametrize("marker, code", [block for page in PAGES for block in _python_blocks(page)])
@pytest.mark.filterwarnings("ignore:The structure of `inputs`")
def test_the_code_of_a_page_runs(marker, code, tmp_path, monkeypatch):
    ast.parse(code)
    if marker.startswith("not run, "):
        return
    assert marker == "run" or marker.startswith("run after: "), "say above the block whether it runs; see this file"
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(marker.removeprefix("run").removeprefix(" after: "), names)
    exec(code, names)
