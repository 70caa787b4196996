"""Tests of the examples in the API reference. The examples run unless they are marked "not run"."""

import ast
import importlib
import inspect
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
from keras_vit import data, export, recipes, training

from .data.helpers import jpeg, write_jpegs, write_records
from .public_names import MODULES, public_objects
from .shared import GOLDEN, ROOT, SIZES, TWO_LAYERS, copy_model_folder, random_images

CELLS = re.findall(
    r"^# %% ([\w.]+)(?: \(not run: (.*)\))?\n((?:(?!# %%).*\n)+)",
    (ROOT / "docs/site/examples.py").read_text(),
    re.MULTILINE,
)


def _resolve(name):
    """Returns the object of a dotted name that starts with `keras_vit`."""
    found = keras_vit
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def test_every_public_function_has_example():
    # The examples of the constructors are generated.
    constructors = [getattr(keras_vit, name) for name in keras_vit.families.CONSTRUCTORS]
    covered = [_resolve(name) for name, *_ in CELLS] + constructors
    for module in ("", *MODULES):
        for name, value in public_objects(module).items():
            needs_example = inspect.isfunction(value) or (not module and inspect.isclass(value))
            assert not needs_example or value in covered, f"docs/site/examples.py has no {name}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trains for two steps and exports the model. Returns the workdir and the config."""
    folder = tmp_path_factory.mktemp("run") / "digits"
    fields = {"model": SIZES, "data": data.defaults(name="digits")}
    config = ConfigDict(recipes.defaults(total_steps=2, batch_size=8, log_every_steps=1, **fields))
    result = training.run(config, training.Workdir(folder, config.to_dict()), write=print)
    export.saved_model(result.model, folder / "export", signatures=("tensor",))
    return folder, config


@pytest.fixture
def variables(run, tmp_path, monkeypatch):
    """Creates the files and returns the variables that the examples use."""
    monkeypatch.chdir(tmp_path)
    workdir, config = run
    shutil.copytree(workdir, "runs/digits")
    for label in ("cat", "dog"):
        write_jpegs(Path("photos", label), 10)
    Path("train.csv").write_text("cat/0.jpg,cat\ndog/0.jpg,dog\n")
    Path("records").mkdir()
    write_records("records/train-0", [jpeg(0)], [1])
    copy_model_folder("dinov2", "facebook/dinov2-base")
    copy_model_folder("siglip", "google/siglip2-base-patch16-224")
    shutil.copy(GOLDEN / "families/siglip_zeroshot.npz", "classes.npz")
    wide = _model(input_shape=(32, 48, 3), num_heads=4, hidden_size=32, mlp_dim=64)
    keras_vit.checkpoints.save(wide, "model.npz")
    return {
        "model": _model(),
        "images": random_images((2, 16, 24, 3)),
        "pixels": np.zeros((2, 16, 24, 3), "uint8"),
        "labels": np.array([0, 1]),
        "config": config,
    }


def _model(**changes):
    return keras_vit.VisionTransformer(**{"input_shape": (16, 24, 3), **TWO_LAYERS, **changes})


@pytest.mark.parametrize(("name", "reason", "code"), CELLS, ids=[name for name, *_ in CELLS])
def test_example_uses_its_name_and_runs(name, reason, code, request):
    assert name.rpartition(".")[2] in code and len(code.strip().splitlines()) <= 12
    for call in ast.walk(ast.parse(code)):
        if isinstance(call, ast.Call) and re.fullmatch(r"keras_vit[\w.]+", ast.unparse(call.func)):
            function = _resolve(ast.unparse(call.func))
            arguments = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            inspect.signature(function).bind_partial(*call.args, **arguments)
    if not reason:
        variables = request.getfixturevalue("variables")
        exec(code, {"keras": keras, "keras_vit": keras_vit, "np": np, **variables})
