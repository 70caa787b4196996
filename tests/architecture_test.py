"""Each part of the package imports only the parts and frameworks listed here."""

import ast
import re

import pytest

from .shared import ROOT

PACKAGE = ROOT / "keras_vit"

# Maps each top-level file or folder of the package to the files and folders that it may import.
ALLOWED_IMPORTS = {
    "files": {"terminal"},
    "terminal": set(),
    "arguments": set(),
    "naflex": {"preprocessing"},
    "layers": {"preprocessing"},
    "losses": set(),
    "optimizers": set(),
    "recipes": {"families"},
    "checkpoints": {"arguments", "files", "terminal", "preprocessing"},
    "data": {"files", "naflex", "preprocessing", "text"},
    "preprocessing": set(),
    # `predictions` downloads class names to the weight cache.
    "predictions": {"checkpoints"},
    "models": {"arguments", "files", "layers", "checkpoints", "naflex", "preprocessing", "text"},
    "families": {"arguments", "files", "layers", "checkpoints", "models", "text"},
    "text": {"checkpoints"},
    "cost": {"layers", "models"},
    "plots": {"files", "naflex"},
    "inspection": {"files", "layers", "models", "plots", "preprocessing"},
    "export": {
        *("checkpoints", "data", "files", "inspection", "layers", "models"),
        *("preprocessing", "terminal"),
    },
    "tasks": {
        "checkpoints",
        "cost",
        "families",
        "layers",
        "losses",
        "models",
        "preprocessing",
        "text",
    },
    "training": {
        "checkpoints",
        "cost",
        "data",
        "export",
        "families",
        "files",
        "layers",
        "models",
        "optimizers",
        "plots",
        "preprocessing",
        "recipes",
        "tasks",
        "terminal",
    },
    "evaluation": {
        "checkpoints",
        "data",
        "files",
        "layers",
        "models",
        "naflex",
        "plots",
        "preprocessing",
        "recipes",
        "tasks",
        "terminal",
        "text",
        "training",
    },
    "tpu": {
        "cost",
        "data",
        "families",
        "files",
        "layers",
        "naflex",
        "plots",
        "preprocessing",
        "recipes",
        "tasks",
        "terminal",
        "training",
    },
    "configs": {"checkpoints", "data", "families", "recipes"},
    "commands": {
        "checkpoints",
        "configs",
        "data",
        "evaluation",
        "export",
        "families",
        "files",
        "inspection",
        "models",
        "plots",
        "preprocessing",
        "recipes",
        "tasks",
        "terminal",
        "text",
        "tpu",
        "training",
    },
    "__main__": {"commands"},
    "__init__": {
        "checkpoints",
        "families",
        "layers",
        "models",
        "naflex",
        "predictions",
        "preprocessing",
        "text",
    },
}
# Only these files and folders may import TensorFlow or JAX.
MAY_IMPORT_TENSORFLOW = (
    "commands",
    "data",
    "export",
    "files.py",
    "training/metrics.py",
    "training/tensorflow",
    "tpu/tensorflow_programs.py",
)
MAY_IMPORT_JAX = ("training/jax", "tpu/compiler.py", "tpu/jax_programs.py")

# Few modules should know about an optional capability. Maps a pattern that finds mentions of a
# capability to the largest number of files that may contain it.
MAX_FILES = {
    r"[nN]a[fF]lex|max_patches": 8,
    r"is_bit|BiT|bit_resnet": 8,
    r"patch_sizes|at_patch_size": 8,
    r"masking_rate|masked_patches|MaskedPatch": 8,
}


def _parts():
    """Returns the names of the top-level files, without suffix, and folders of the package."""
    paths = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()]
    return sorted(path.stem for path in paths if path.name != "__pycache__")


def _files(part):
    path = PACKAGE / part
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def _imports(file):
    """Yields the dotted names that a file imports, except imports under `if TYPE_CHECKING`."""
    tree = ast.parse(file.read_text())
    blocks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    skipped = {node for block in blocks for node in ast.walk(block)}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports must be absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


for_each_part = pytest.mark.parametrize("part", _parts())


@for_each_part
def test_imports_are_allowed(part):
    assert part in ALLOWED_IMPORTS, f"keras_vit/{part} has no entry in ALLOWED_IMPORTS"
    for file in _files(part):
        for module in _imports(file):
            if module.startswith("keras_vit."):
                other = module.split(".")[1]
                assert other == part or other in ALLOWED_IMPORTS[part], f"{file} imports {module}"


def test_listed_files_and_folders_exist():
    assert set(ALLOWED_IMPORTS) <= set(_parts())
    for path in (*MAY_IMPORT_TENSORFLOW, *MAY_IMPORT_JAX):
        assert (PACKAGE / path).exists(), path


def test_training_imports_engines_only_in_engines_py():
    for file in (PACKAGE / "training").glob("*.py"):
        for module in _imports(file):
            is_engine = module.startswith(
                ("keras_vit.training.tensorflow", "keras_vit.training.jax")
            )
            assert not is_engine or file.name == "engines.py", f"{file} imports {module}"


def _is_under(file, paths):
    return any(file.relative_to(PACKAGE).is_relative_to(path) for path in paths)


@for_each_part
def test_framework_imports_are_confined(part):
    for file in _files(part):
        for module in _imports(file):
            top = module.split(".")[0]
            if top in ("tensorflow", "tensorflow_datasets"):
                assert _is_under(file, MAY_IMPORT_TENSORFLOW), f"{file} imports {module}"
            if top in ("jax", "jaxlib", "libtpu"):
                assert _is_under(file, MAY_IMPORT_JAX), f"{file} imports {module}"
            assert not module.startswith("keras.src"), f"{file} uses Keras' private {module}"
            assert top not in ("tensorflow_addons", "tf_keras", "torch"), f"{file} imports {module}"


def test_only_plots_files_import_matplotlib():
    for file in PACKAGE.rglob("*.py"):
        if file.name != "plots.py":
            for module in _imports(file):
                assert not module.startswith("matplotlib"), f"{file} imports {module}"


def test_library_code_contains_no_assert_statements():
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            assert not isinstance(node, ast.Assert), f"{file}:{node.lineno}"


def test_library_code_reads_no_pickle_files():
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert node.value.value is False, f"{file}:{node.value.lineno}"
        for module in _imports(file):
            assert module.split(".")[0] != "pickle", f"{file} imports {module}"


@pytest.mark.parametrize("pattern", MAX_FILES)
def test_few_files_mention_a_capability(pattern):
    files = [str(file) for file in PACKAGE.rglob("*.py") if re.search(pattern, file.read_text())]
    assert len(files) <= MAX_FILES[pattern], files
