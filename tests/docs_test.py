"""Tests of the tables, names, links, commands and code in README.md, CONTRIBUTING.md and docs/.

Every Python block must parse. A comment above the block tells the test what to do:

- `<!-- test: run -->` runs the block.
- `<!-- test: run after NAME -->` first calls the function `SETUPS[NAME]`.
- `<!-- test: run with published files -->` first replaces the published weights with small files.
- `<!-- test: run with MODULE -->` runs the block if `MODULE` is installed.
- `<!-- test: not run, REASON -->` only parses the block.

`with` and `after` can be combined, in this order.
"""

import ast
import csv
import inspect
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
import keras_vit_cli
from keras_vit import cost, data, families, recipes
from keras_vit.checkpoints import published
from keras_vit.commands import shared_flags

from .data.helpers import write_jpegs
from .shared import GOLDEN, ROOT, TWO_LAYERS, copy_model_folder, load_module


def _small_model(**changes):
    return keras_vit.VisionTransformer(**{"input_shape": (16, 24, 3), **TWO_LAYERS, **changes})


def _zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


def _photos():
    for label in "ab":
        write_jpegs(Path("photos", label), 40)
    return {"pixels": _zeros(8, 32, 32, 3, dtype="uint8"), "labels": np.arange(8) % 2}


def _timm_file():
    keras_vit.checkpoints.save(keras_vit.ViT_Ti16(), "timm", format="timm")
    Path("timm/model.safetensors").rename("vit.safetensors")


def _export():
    model = _small_model(patch_size=4, classes=10, input_shape=(8, 8, 3))
    keras_vit.export.saved_model(model, "runs/digits/export", signatures=("tensor",))
    return {"images": _zeros(2, 8, 8, 3)}


def _dinov2_and_images():
    copy_model_folder("dinov2", "facebook/dinov2-base")
    return {"images": np.full((4, 224, 224, 3), 99, "uint8"), "labels": np.arange(4) % 3}


def _zero_shot():
    copy_model_folder("siglip", "google/siglip2-base-patch16-224")
    shutil.copy(GOLDEN / "families/siglip_zeroshot.npz", "classes.npz")


def _naflex():
    copy_model_folder("siglip2_naflex", "google/siglip2-base-patch16-naflex")
    return {"wide": _zeros(20, 90, 3, dtype="uint8"), "tall": _zeros(80, 30, 3, dtype="uint8")}


def _keras_file():
    _small_model(num_layers=7).save("mine.keras")
    return {"images": _zeros(2, 16, 24, 3)}


# Each function prepares a block: it may create files, and may return a dict of the variables that
# the block uses.
SETUPS = {
    "cat": lambda: keras.utils.save_img("cat.jpg", _zeros(30, 40, 3)),
    "timm_file": _timm_file,
    "square_images": lambda: {"images": _zeros(1, 384, 384, 3, dtype="uint8")},
    "photos": _photos,
    "model": lambda: {"model": _small_model(), "images": _zeros(2, 16, 24, 3)},
    "dinov2": lambda: copy_model_folder("dinov2", "facebook/dinov2-base"),
    "dinov2_and_images": _dinov2_and_images,
    "vit": lambda: {
        "vit": _small_model(input_shape=(16, 16, 3)),
        "keras": keras,
        "keras_vit": keras_vit,
    },
    "timm_model": lambda: {
        "model": keras_vit.from_pretrained(GOLDEN / "families/timm_deit3.safetensors", num_heads=3),
        "keras_vit": keras_vit,
    },
    "naflex": _naflex,
    "zero_shot": _zero_shot,
    "keras_file": _keras_file,
    "model_and_names": lambda: {"model": _small_model(), "names": ["cat", "dog", "bird"]},
    "export": _export,
    "npz_file": lambda: shutil.copy(GOLDEN / "vit_token.ckpt.npz", "model.npz"),
    "wide_images": lambda: {
        "images": _zeros(1, 384, 512, 3, dtype="uint8"),
        "keras_vit": keras_vit,
    },
    "import": lambda: {"keras_vit": keras_vit},
}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def _python_blocks(page):
    """Returns the text of the `test:` comment and the code of each Python block."""
    blocks = re.findall(
        r"(?:<!-- test: (.*?) -->\n)?```python\n(.*?)```", page.read_text(), re.DOTALL
    )
    return [
        pytest.param(marker, code, id=f"{page.stem}{i}") for i, (marker, code) in enumerate(blocks)
    ]


def test_model_table_is_complete_and_current():
    lines = (ROOT / "docs/results/models.csv").read_text().splitlines()
    rows = {row["model"]: row for row in csv.DictReader(lines)}
    prefixes = ("ViT_", "R_", "R26", "R50", "BiT_")
    assert set(rows) == {name for name in families.CONSTRUCTORS if name.startswith(prefixes)}
    columns = {
        "patch": "patch_size",
        "hidden_size": "hidden_size",
        "layers": "num_layers",
        "mlp": "mlp_dim",
        "heads": "num_heads",
    }
    for name, row in rows.items():
        model = cost.build_abstract(getattr(keras_vit, name), classes=1000)
        assert int(row["parameters"]) == model.count_params(), name
        if name.startswith("BiT_"):
            continue
        for column, argument in columns.items():
            assert int(row[column]) == model.arguments[argument], name


@pages
def test_names_in_docs_exist(page):
    text = page.read_text()
    for name in set(re.findall(r"\bkeras_vit\.(\w+)", text)) - {"git"}:
        assert hasattr(keras_vit, name), name
    for path in set(re.findall(r"`((?:keras_vit|experiments|tests)/[\w/.]+)`", text)):
        assert (ROOT / path).exists(), path


@pages
def test_relative_links_resolve(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?://)([^)#]*)(?:#[\w-]+)?\)", text):
        assert (page.parent / link).exists(), link


def test_readme_links_every_page():
    linked = set(re.findall(r"\]\(docs/([\w-]+)\.md\)", PAGES[0].read_text()))
    assert linked == {page.stem for page in (ROOT / "docs").glob("*.md")}


def test_readme_has_at_most_150_lines():
    assert len(PAGES[0].read_text().splitlines()) <= 150


def _commands(text):
    """Yields `(command, arguments)` for each command or script in code blocks and inline code."""
    parts = re.findall(r"```sh\n(.*?)```|`((?:python|keras-vit) [^`]+)`", text, re.DOTALL)
    for block, sentence in parts:
        lines = block.replace("\\\n", " ") or " ".join(sentence.split())
        for command, arguments in re.findall(r"(?:keras-vit|python) ([\w./-]+)([^&|\n]*)", lines):
            is_script = command.startswith(("experiments/", "tests/"))
            if is_script or command in keras_vit_cli.COMMANDS:
                yield command, arguments


def _flags(command):
    """Returns the names of the flags that a command or script defines in its source."""
    if command == "experiments/run_tpu.py":
        return _flags("train")
    path = ROOT / command
    if command in keras_vit_cli.COMMANDS:
        path = ROOT / "keras_vit" / "commands" / f"{keras_vit_cli.COMMANDS[command][0]}.py"
    source = (path / "__main__.py" if path.is_dir() else path).read_text()
    for name in re.findall(r"shared_flags\.(define_\w+)\(", source):
        source += inspect.getsource(getattr(shared_flags, name))
    flags = set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source))
    return flags | {"config"} if "define_config(" in source else flags


@pages
def test_documented_flags_exist(page):
    for command, arguments in _commands(page.read_text()):
        unknown = set(re.findall(r"--(\w+)", arguments)) - _flags(command) - {"help"}
        assert not unknown, f"{command} has no {unknown}"


@pytest.fixture
def published_files(tmp_path_factory, monkeypatch):
    """Shrinks ViT-B/16, and writes new weights to files with the names of its published files."""
    folder = tmp_path_factory.mktemp("published")
    small = {
        **families.vit.FAMILY.sizes["ViT-B/16"],
        "num_layers": 1,
        "hidden_size": 12,
        "mlp_dim": 8,
    }
    monkeypatch.setitem(families.vit.FAMILY.sizes, "ViT-B/16", small)
    entries = [entry for entry in published.published_files() if entry.model == "ViT-B/16"]
    monkeypatch.setattr(published, "published_files", lambda: entries)
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(folder))
    for entry in entries:
        sizes = {"classes": entry.classes, "representation_size": entry.representation_size}
        model = keras_vit.ViT_B16(
            input_shape=(entry.resolution, entry.resolution, 3), head_bias=0.1, **sizes
        )
        file = folder / entry.collection / f"{entry.name}.npz"
        file.parent.mkdir(exist_ok=True)
        keras_vit.checkpoints.save(model, file)
    (folder / "bit_models").mkdir()
    for name, classes in (("ilsvrc2012", 1000), ("imagenet21k", 21843)):
        (folder / "bit_models" / f"{name}_wordnet_lemmas.txt").write_text("cat\n" * classes)


@pytest.mark.parametrize(
    "marker, code", [block for page in PAGES for block in _python_blocks(page)]
)
@pytest.mark.filterwarnings("ignore:The structure of `inputs`")
@pytest.mark.filterwarnings("ignore:The head of .* is all zeros")  # the small models are untrained
def test_python_blocks_run(marker, code, tmp_path, monkeypatch, request):
    ast.parse(code)
    if marker.startswith("not run, "):
        return
    match = re.fullmatch(r"run(?: with (published files|\w+))?(?: after (\w+))?", marker)
    assert match, "the block needs a `<!-- test: ... -->` comment; see the docstring of this file"
    needs, setup = match.groups()
    if needs == "published files":
        request.getfixturevalue("published_files")
    elif needs:
        pytest.importorskip(needs)
    # Use one layer, because compiling 12 layers takes half a minute.
    small = {**families.vit.FAMILY.sizes["ViT-Ti/16"], "num_layers": 1}
    monkeypatch.setitem(families.vit.FAMILY.sizes, "ViT-Ti/16", small)
    monkeypatch.chdir(tmp_path)
    variables = SETUPS[setup]() if setup else None
    exec(code, variables if isinstance(variables, dict) else {})


def test_config_field_page_is_current():
    fields = load_module(ROOT / "docs" / "site" / "fields.py")
    assert fields.PAGE.read_text() == fields.page(), "run python docs/site/fields.py"
    meanings = dict(re.findall(r"^\| `([\w.]+)` \| `.*?` \| (.*) \|$", fields.page(), re.MULTILINE))
    names = set()
    for name, value in recipes.defaults(data=data.defaults(), model={}).items():
        is_group = isinstance(value, dict)
        names |= {f"{name}.{field}" for field in value} if is_group else {name}
    assert set(meanings) == names
    assert all(meanings.values())
