"""Each part of the package imports only the parts and frameworks listed here."""

import ast
import functools
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
    "data": {"arguments", "files", "naflex", "preprocessing", "text"},
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
        "arguments",
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
        "models",
        "naflex",
        "plots",
        "preprocessing",
        "recipes",
        "tasks",
        "terminal",
        "training",
    },
    "configs": {"checkpoints", "data", "families", "layers", "recipes"},
    "commands": {
        "arguments",
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
_TENSORFLOW = (
    "commands",
    "data",
    "export",
    "files.py",
    "training/metrics.py",
    "training/tensorflow",
    "tpu/tensorflow_programs.py",
)
_JAX = ("training/jax", "tpu/compiler.py", "tpu/jax_programs.py")
_PLOTS = [str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("plots.py")]
# Maps each confined package to the files and folders that may import it.
MAY_IMPORT = {
    "tensorflow": _TENSORFLOW,
    "tensorflow_datasets": _TENSORFLOW,
    "jax": _JAX,
    "jaxlib": _JAX,
    "libtpu": _JAX,
    "matplotlib": _PLOTS,
    "keras.src": (),  # Keras' private modules
    "pickle": (),
    "tensorflow_addons": (),
    "tf_keras": (),
    "torch": (),
}

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


@functools.cache
def _nodes(file):
    """Returns the nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(file.read_text())))


@functools.cache
def _imports(file):
    """Returns the dotted names that a file imports, except imports under `if TYPE_CHECKING`."""
    skipped = set()
    for node in _nodes(file):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= set(ast.walk(node))
    names = []
    for node in _nodes(file):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports must be absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


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
    for path in (*_TENSORFLOW, *_JAX):
        assert (PACKAGE / path).exists(), path


def test_training_imports_engines_only_in_engines_py():
    engines = ("keras_vit.training.tensorflow", "keras_vit.training.jax")
    for file in (PACKAGE / "training").glob("*.py"):
        for module in _imports(file):
            is_engine = module.startswith(engines)
            assert not is_engine or file.name == "engines.py", f"{file} imports {module}"


@for_each_part
def test_imports_of_other_packages_are_confined(part):
    for file in _files(part):
        path = file.relative_to(PACKAGE)
        for package, allowed in MAY_IMPORT.items():
            if any(path.is_relative_to(folder) for folder in allowed):
                continue
            for module in _imports(file):
                assert not f"{module}.".startswith(f"{package}."), f"{file} imports {module}"


def test_library_code_contains_no_assert_statements():
    for file in PACKAGE.rglob("*.py"):
        for node in _nodes(file):
            assert not isinstance(node, ast.Assert), f"{file}:{node.lineno}"


def test_library_code_reads_no_pickle_files():
    for file in PACKAGE.rglob("*.py"):
        for node in _nodes(file):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert node.value.value is False, f"{file}:{node.value.lineno}"


@pytest.mark.parametrize("pattern", MAX_FILES)
def test_few_files_mention_a_capability(pattern):
    files = [str(file) for file in PACKAGE.rglob("*.py") if re.search(pattern, file.read_text())]
    assert len(files) <= MAX_FILES[pattern], files


def test_forward_pass_fits_one_page():
    lines = (PACKAGE / "models" / "vision_transformer.py").read_text().splitlines()
    assert len(lines) <= 300
