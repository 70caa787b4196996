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
import importlib.util
import inspect
import itertools
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
import keras_vit_cli
from keras_vit import data, families, recipes
from keras_vit.checkpoints import published
from keras_vit.commands import shared_flags

from .shared import GOLDEN, ROOT, TWO_LAYERS


def _small_model(**changes):
    return keras_vit.VisionTransformer(**{"input_shape": (16, 24, 3), **TWO_LAYERS, **changes})


def _golden(source, target):
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(GOLDEN / source, target)


def _golden_folder(family, name):
    _golden(f"families/{family}.safetensors", f"{name}/model.safetensors")
    _golden(f"families/{family}.config.json", f"{name}/config.json")


def _zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


def _photos():
    for i, label in itertools.product(range(40), "ab"):
        Path("photos", label).mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(f"photos/{label}/{i}.png", np.full((20, 30, 3), 6 * i), scale=False)
    return {"pixels": _zeros(8, 32, 32, 3, dtype="uint8"), "labels": np.arange(8) % 2}


def _timm_file():
    keras_vit.checkpoints.save(keras_vit.ViT_Ti16(), "timm", format="timm")
    Path("timm/model.safetensors").rename("vit.safetensors")


def _export():
    model = _small_model(patch_size=4, classes=10, input_shape=(8, 8, 3))
    keras_vit.export.saved_model(model, "runs/digits/export", signatures=("tensor",))
    return {"images": _zeros(2, 8, 8, 3)}


def _dinov2_and_images():
    _golden_folder("dinov2", "facebook/dinov2-base")
    return {"images": np.full((4, 224, 224, 3), 99, "uint8"), "labels": np.arange(4) % 3}


def _zero_shot():
    _golden_folder("siglip", "google/siglip2-base-patch16-224")
    _golden("families/siglip_zeroshot.npz", "classes.npz")


def _naflex():
    _golden_folder("siglip2_naflex", "google/siglip2-base-patch16-naflex")
    return {"wide": _zeros(20, 90, 3, dtype="uint8"), "tall": _zeros(80, 30, 3, dtype="uint8")}


def _keras_file():
    _small_model(num_layers=7).save("mine.keras")
    return {"images": _zeros(2, 16, 24, 3)}


# Each function prepares a block: it may create files, and returns a dict of the variables that the
# block uses, or None.
SETUPS = {
    "cat": lambda: keras.utils.save_img("cat.jpg", _zeros(30, 40, 3)),
    "timm_file": _timm_file,
    "square_images": lambda: {"images": _zeros(1, 384, 384, 3, dtype="uint8")},
    "photos": _photos,
    "model": lambda: {"model": _small_model(), "images": _zeros(2, 16, 24, 3)},
    "dinov2": lambda: _golden_folder("dinov2", "facebook/dinov2-base"),
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
    "npz_file": lambda: _golden("vit_token.ckpt.npz", "model.npz"),
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


def test_model_table_is_complete_and_counts_parameters():
    with (ROOT / "docs/results/models.csv").open() as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert set(rows) == {
        name
        for name in families.CONSTRUCTORS
        if name.startswith(("ViT_", "R_", "R26", "R50", "BiT_"))
    }
    for name, row in rows.items():
        if name.startswith("BiT_"):
            assert (
                f"{int(row['parameters']) / 1e6:.1f}M parameters"
                in getattr(keras_vit, name).__doc__
            )
            continue
        patch, d, layers, m = (
            int(row[column]) for column in ("patch", "hidden_size", "layers", "mlp")
        )
        side = 224
        channels = 3
        parameters = 0
        if stem := row["resnet_stem"]:
            blocks = () if stem == "root only" else tuple(map(int, stem.split()))
            _, side, _, channels = keras_vit.layers.ResNetStem(blocks).compute_output_shape(
                (None, 224, 224, 3)
            )
            parameters = {
                (): 9_536,
                (2, 2, 2, 2): 13_946_176,
                (3, 4, 9): 11_894_848,
                (3, 4, 6, 3): 23_508_032,
            }[blocks]
        tokens = (side // patch) ** 2 + 1
        parameters += (
            patch**2 * channels * d
            + d
            + d
            + tokens * d
            + layers * (4 * d * d + 2 * d * m + 9 * d + m)
        )
        parameters += 2 * d + 1000 * d + 1000
        assert int(row["parameters"]) == parameters, name


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


@pages
def test_documented_flags_exist(page):
    for command, arguments in _commands(page.read_text()):
        unknown = set(re.findall(r"--(\w+)", arguments)) - _flags(command) - {"help"}
        assert not unknown, f"{command} has no {unknown}"


def _commands(text):
    """Yields `(command, arguments)` for each command or script in code blocks and inline code."""
    parts = re.findall(r"```sh\n(.*?)```|`((?:python|keras-vit) [^`]+)`", text, re.DOTALL)
    for block, sentence in parts:
        for line in (block.replace("\\\n", " ") or " ".join(sentence.split())).splitlines():
            for command, arguments in re.findall(r"(?:keras-vit|python) ([\w./-]+)([^&|]*)", line):
                if command in keras_vit_cli.COMMANDS or command.startswith(
                    ("experiments/", "tests/")
                ):
                    yield command, arguments


def _flags(command):
    """Returns the names of the flags that a command or script defines in its source."""
    path = ROOT / command
    if command in keras_vit_cli.COMMANDS:
        path = ROOT / "keras_vit" / "commands" / f"{keras_vit_cli.COMMANDS[command][0]}.py"
    elif command == "experiments/run_tpu.py":
        return _flags("train")
    source = (path / "__main__.py" if path.is_dir() else path).read_text()
    for name in re.findall(r"shared_flags\.(define_\w+)\(", source):
        source += inspect.getsource(getattr(shared_flags, name))
    return set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source)) | (
        {"config"} if "define_config(" in source else set()
    )


def test_flags_are_read_per_command():
    assert _flags("experiments/run_tpu.py") == {"config", "workdir", "change", "tracker"}
    assert "config" not in _flags("evaluate") and {"model", "weights", "evals"} < _flags("evaluate")
    assert {"config", "output"} < _flags("show-batch")


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
    exec(code, dict(SETUPS[setup]() or {}) if setup else {})


def test_config_field_page_is_current():
    spec = importlib.util.spec_from_file_location("fields", ROOT / "docs" / "site" / "fields.py")
    fields = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fields)
    assert fields.PAGE.read_text() == fields.page(), "run python docs/site/fields.py"
    rows = re.findall(r"^\| `([\w.]+)` \| `.*?` \| (.*) \|$", fields.page(), re.MULTILINE)
    config = ConfigDict(recipes.defaults(data=data.defaults(), model={})).to_dict()
    names = {
        f"{group}.{name}"
        for group in ("distillation", "optimizer", "schedule", "data")
        for name in config[group]
    }
    assert {name for name, _ in rows} == names | {
        name for name, value in config.items() if not isinstance(value, dict)
    }
    assert all(meaning.strip() for _, meaning in rows)
