"""Tests of the examples in the API reference. The examples run unless they are marked "not run"."""

import ast
import importlib
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
from keras_vit import data, export, files, recipes, training

from .shared import GOLDEN, ROOT, TWO_LAYERS, random_images

# Public modules that are not in `keras_vit.__all__`.
FURTHER = ("training.plots", "evaluation.plots", "inspection.plots", "inspection.report")
MODULES = (
    *(name for name in keras_vit.__all__ if inspect.ismodule(getattr(keras_vit, name))),
    *FURTHER,
)
CELLS = re.findall(
    r"^# %% ([\w.]+)(?: \(not run: (.*)\))?\n((?:(?!# %%).*\n)+)",
    (ROOT / "docs/site/examples.py").read_text(),
    re.MULTILINE,
)
cells = pytest.mark.parametrize("name, reason, code", CELLS, ids=[name for name, *_ in CELLS])


def _resolve(name):
    """Returns the object of a dotted name that starts with `keras_vit`."""
    found = keras_vit
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def _public(module):
    module = importlib.import_module(f"keras_vit.{module}")
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__
    ]
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for name in names
        if not name.startswith("_")
    }


def test_every_public_function_has_example():
    public = {f"keras_vit.{name}": getattr(keras_vit, name) for name in keras_vit.__all__}
    required = {name: value for name, value in public.items() if inspect.isclass(value)}
    for names in (public, *map(_public, MODULES)):
        required |= {name: value for name, value in names.items() if inspect.isfunction(value)}
    # The examples of the constructors are generated.
    constructors = [getattr(keras_vit, name) for name in keras_vit.families.CONSTRUCTORS]
    covered = [_resolve(name) for name, *_ in CELLS] + constructors
    missing = [name for name, value in required.items() if value not in covered]
    assert not missing, "add examples of these functions to docs/site/examples.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trains for two steps and exports the model. Returns the workdir and the config."""
    folder = tmp_path_factory.mktemp("run") / "digits"
    model = {name: value for name, value in TWO_LAYERS.items() if name != "classes"}
    config = ConfigDict(
        recipes.defaults(
            total_steps=2,
            batch_size=8,
            log_every_steps=1,
            model=model,
            data=data.defaults(name="digits"),
        )
    )
    result = training.run(config, training.Workdir(folder, config.to_dict()), write=str)
    export.saved_model(result.model, folder / "export", signatures=("tensor",))
    return folder, config


@pytest.fixture
def reader(run, tmp_path, monkeypatch):
    """Creates the files and returns the variables that the examples use."""
    monkeypatch.chdir(tmp_path)
    workdir, config = run
    shutil.copytree(workdir, "runs/digits")
    for i, label in itertools.product(range(10), ("cat", "dog")):
        files.make_dirs(f"photos/{label}")
        keras.utils.save_img(f"photos/{label}/{i}.png", np.full((20, 30, 3), 6 * i), scale=False)
    Path("train.csv").write_text("cat/0.png,cat\ndog/0.png,dog\n")
    _records("records/train-0")
    for source, target in (
        ("families/dinov2", "facebook/dinov2-base/"),
        ("families/siglip", "google/siglip2-base-patch16-224/"),
    ):
        files.make_dirs(target)
        shutil.copy(GOLDEN / f"{source}.safetensors", f"{target}model.safetensors")
        shutil.copy(GOLDEN / f"{source}.config.json", f"{target}config.json")
    shutil.copy(GOLDEN / "families/siglip_zeroshot.npz", "classes.npz")
    keras_vit.checkpoints.save(
        _model(input_shape=(32, 48, 3), num_heads=4, hidden_size=32, mlp_dim=64), "model.npz"
    )
    images = random_images((2, 16, 24, 3))
    pixels = np.zeros((2, 16, 24, 3), "uint8")
    labels = np.array([0, 1])
    return {
        "model": _model(),
        "images": images,
        "pixels": pixels,
        "labels": labels,
        "config": config,
    }


def _model(**changes):
    return keras_vit.VisionTransformer(**{"input_shape": (16, 24, 3), **TWO_LAYERS, **changes})


def _records(path):
    import tensorflow as tf

    files.make_dirs(str(Path(path).parent))
    image = tf.io.encode_png(np.zeros((8, 8, 3), "uint8")).numpy()
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[1])),
    }
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(
            tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
        )


@cells
def test_example_uses_its_name_and_runs(name, reason, code, request):
    tree = ast.parse(code)
    assert name.rpartition(".")[2] in code and len(code.strip().splitlines()) <= 12
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and re.fullmatch(r"keras_vit[\w.]+", ast.unparse(call.func)):
            function = _resolve(ast.unparse(call.func))
            arguments = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            inspect.signature(function).bind_partial(*call.args, **arguments)
    if not reason:
        reader = request.getfixturevalue("reader")
        exec(code, {"keras": keras, "keras_vit": keras_vit, "np": np, **reader})


@pytest.mark.parametrize("name", keras_vit.families.CONSTRUCTORS)
def test_constructor_example_matches_signature(name):
    inspect.signature(getattr(keras_vit, name)).bind(classes=37)
