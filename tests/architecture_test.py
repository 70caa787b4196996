"""Which parts of the package may import which others, and which frameworks."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "keras_vit"

# Each file or folder of the package, and the others that it may import. Every one has a row.
FLOORS = {
    "files": {"terminal"},
    "terminal": set(),
    "naflex": set(),
    "layers": {"naflex", "preprocessing"},
    "losses": set(),
    "optimizers": set(),
    "recipes": {"families"},
    "checkpoints": {"files", "terminal", "preprocessing"},
    "data": {"files", "naflex", "preprocessing"},
    "preprocessing": {"naflex"},
    "predictions": {"checkpoints"},  # class names come through the cache of weights
    "models": {"files", "layers", "checkpoints", "naflex", "preprocessing"},
    "families": {"layers", "checkpoints", "models"},
    "cost": {"layers", "models"},
    "plots": {"files", "naflex"},
    "inspection": {"files", "layers", "models", "plots"},
    "export": {"files", "terminal", "data", "checkpoints", "inspection", "models", "preprocessing"},
    "tasks": {"checkpoints", "families", "models", "layers", "losses", "cost"},
    "training": {
        "files",
        "terminal",
        "tasks",
        "layers",
        "checkpoints",
        "data",
        "optimizers",
        "recipes",
        "cost",
        "plots",
        "preprocessing",
    },
    "evaluation": {
        *("checkpoints", "data", "files", "layers", "models", "naflex", "plots", "preprocessing", "recipes"),
        *("terminal", "training"),
    },
    "tpu": {
        *(
            "families",
            "cost",
            "data",
            "files",
            "layers",
            "naflex",
            "plots",
            "preprocessing",
            "recipes",
            "tasks",
            "terminal",
        ),
        "training",
    },
    "configs": {"checkpoints", "data", "families", "recipes"},
    "commands": {
        *("checkpoints", "configs", "data", "evaluation", "export", "families", "files", "inspection", "models"),
        *("plots", "preprocessing", "recipes", "tasks", "terminal", "tpu", "training"),
    },
    "__main__": {"commands"},
    "__init__": {"checkpoints", "families", "layers", "models", "naflex", "predictions", "preprocessing"},
}
# Files and folders that may import TensorFlow; all others run on any backend.
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


def _rooms():
    return sorted(path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir())


def _files(room):
    path = PACKAGE / room
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def _imports(file):
    """Returns the dotted names of all modules that a file imports, except those for type checkers only."""
    tree = ast.parse(file.read_text())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    skipped = {node for block in blocks for node in ast.walk(block)}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide the floor they come from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


rooms = pytest.mark.parametrize("room", [room for room in _rooms() if room != "__pycache__"])


@rooms
def test_imports_are_allowed(room):
    assert room in FLOORS, f"keras_vit/{room} has no row in FLOORS"
    for file in _files(room):
        for module in _imports(file):
            if module.startswith("keras_vit."):
                other = module.split(".")[1]
                assert other == room or other in FLOORS[room], f"{file} imports {module}"


def test_every_row_of_the_table_has_a_folder():
    assert set(FLOORS) <= set(_rooms())
    for path in (*MAY_IMPORT_TENSORFLOW, *MAY_IMPORT_JAX):
        assert (PACKAGE / path).exists()


def test_the_loop_knows_no_engine_but_through_the_choice_of_one():
    for file in (PACKAGE / "training").glob("*.py"):
        engines = [
            m for m in _imports(file) if m.startswith(("keras_vit.training.tensorflow", "keras_vit.training.jax"))
        ]
        assert not engines or file.name == "engines.py", f"{file} imports {engines}"


def _is_under(file, paths):
    return any(file.relative_to(PACKAGE).is_relative_to(path) for path in paths)


@rooms
def test_only_parts_that_need_a_framework_import_it(room):
    for file in _files(room):
        for module in _imports(file):
            top = module.split(".")[0]
            if top in ("tensorflow", "tensorflow_datasets"):
                assert _is_under(file, MAY_IMPORT_TENSORFLOW), f"{file} imports {module}"
            if top in ("jax", "jaxlib", "libtpu"):
                assert _is_under(file, MAY_IMPORT_JAX), f"{file} imports {module}"
            assert not module.startswith("keras.src"), f"{file} uses Keras' private {module}"
            assert top not in ("tensorflow_addons", "tf_keras", "torch"), f"{file} imports {module}"


def test_only_plots_imports_matplotlib():
    for file in PACKAGE.rglob("*.py"):
        if file.name != "plots.py":
            assert not [m for m in _imports(file) if m.startswith("matplotlib")], file


def test_no_library_code_asserts_or_unpickles():
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            assert not isinstance(node, ast.Assert), f"{file}:{node.lineno} asserts"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert node.value.value is False, f"{file} allows pickles"
        assert "pickle" not in set(_imports(file)), f"{file} imports pickle"
