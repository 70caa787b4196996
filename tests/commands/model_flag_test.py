"""Tests of the flag `--model` with local and remote paths."""

import shutil

import pytest

import keras_vit
from keras_vit import data, evaluation, export, files, training
from keras_vit.commands import evaluate, shared_flags
from keras_vit.export.versions import CARD, MODEL
from keras_vit.models.any_model import logits_activation_of
from keras_vit.training import loop

from ..shared import SIZES, assert_same_weights
from ..training import small_run
from .conftest import random_pixels, write_image

FOLDER = "ram://shared_flags"  # TensorFlow's in-memory file system stands in for gs://


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Returns a model, and saves it in FOLDER as `model.keras` and as versions 9 and 10 of a run's
    export."""
    model = keras_vit.VisionTransformer(**SIZES, classes=3, input_shape=(8, 8, 3))
    folder = tmp_path_factory.mktemp("model")
    model.save(folder / "model.keras")
    files.make_dirs(f"{FOLDER}/run")
    files.copy(folder / "model.keras", f"{FOLDER}/model.keras")
    files.write_json(f"{FOLDER}/run/config.json", {})
    exports = f"{FOLDER}/run/export"
    options = {"class_names": "xyz", "activation": "sigmoid", "signatures": ("tensor",)}
    export.saved_model(model, exports, version=10, **options)
    files.make_dirs(f"{exports}/9/assets.extra")
    files.copy(folder / "model.keras", f"{exports}/9/{MODEL}")
    card = {**export.load_card(f"{exports}/10"), "metrics": {"version": 9}}
    files.write_json(f"{exports}/9/{CARD}", card)
    return model


def test_remote_keras_file_loads_unchanged(model):
    loaded, details = shared_flags.load_model(f"{FOLDER}/model.keras")
    assert_same_weights(loaded, model)
    assert details == {}


@pytest.mark.parametrize(
    ("source", "metrics"),
    [("run", {}), ("run/", {}), ("run/export/9", {"version": 9}), ("run/export", {})],
)
def test_remote_export_loads_unchanged(source, metrics, model):
    loaded, details = shared_flags.load_model(f"{FOLDER}/{source}")
    assert_same_weights(loaded, model)
    assert details["metrics"] == metrics
    assert details["class_names"] == ["x", "y", "z"]
    assert details["activation"] == "sigmoid"


def test_remote_run_without_checkpoint_is_refused():
    folder = f"{FOLDER}/unfinished"
    files.make_dirs(folder)
    files.write_json(f"{folder}/config.json", {})
    with pytest.raises(ValueError, match="The run has no checkpoint yet"):
        shared_flags.load_model(folder)


def test_remote_damaged_export_is_refused():
    folder = f"{FOLDER}/damaged"
    files.make_dirs(f"{folder}/assets.extra")
    with files.atomic_write(f"{folder}/{CARD}") as file:
        file.write("{")
    with pytest.raises(ValueError, match="The file must be JSON"):
        shared_flags.load_model(folder)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("runs/foto", "does not exist.*--weights takes weights.* Received: model='runs/foto'"),
        ("runs", "neither a run nor an export.* Received: model='runs'"),
        ("weights", "--weights takes weights. Received: model='weights'"),
        ("notes.txt", "^--model takes the workdir of a run, .* Received: model='notes.txt'"),
    ],
)
def test_invalid_model_error_names_alternatives(source, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/photos/config.json", "weights/model.safetensors", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    # A folder whose name is a number is an export only if it has a card.
    (tmp_path / "runs/7").mkdir()
    with pytest.raises(ValueError, match=message):
        shared_flags.load_model(source)


def _train(workdir, **changes):
    return small_run.start("alone", workdir, write=lambda line: None, **changes)


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({"eval_every_steps": 5}, "best checkpoint by accuracy"),
        ({"eval_every_steps": 0, "checkpoint_every_steps": 8}, "newest checkpoint"),
    ],
    ids=["best", "newest"],
)
def test_finished_run_without_export_loads_its_result(changes, chosen, tmp_path, capsys):
    result = _train(tmp_path, total_steps=9, loss="sigmoid", **changes)
    loaded, details = shared_flags.load_model(str(tmp_path))
    assert f"the run has no export: using the {chosen}" in capsys.readouterr().err
    assert logits_activation_of(loaded) == "sigmoid"
    assert details["recipe"]["total_steps"] == 9
    assert details["class_names"] == result.inputs.test.class_names
    assert_same_weights(loaded, result.model)


def test_stopped_run_without_export_loads_its_best_checkpoint(tmp_path, capsys, monkeypatch):
    note_best = loop.note_best

    def note_best_before_the_stop(counters, *arguments):
        return counters.step < 9 and note_best(counters, *arguments)

    monkeypatch.setattr(loop, "note_best", note_best_before_the_stop)
    result = _train(tmp_path, total_steps=9, eval_every_steps=5)
    shutil.rmtree(tmp_path / "checkpoints" / "000000009")
    loaded, _ = shared_flags.load_model(str(tmp_path))
    printed = capsys.readouterr().err
    assert "best checkpoint by accuracy" in printed
    assert "000000005" in printed
    accuracy = evaluation.evaluate(loaded, ["top1"], result.inputs)["top1/accuracy"]
    evaluations = training.read_metrics(tmp_path / "evaluations.csv")
    assert accuracy == pytest.approx(evaluations["accuracy"][0])


def test_model_of_a_run_needs_no_data(tmp_path, parse, monkeypatch):
    """Trains on a folder given by a relative path, and loads from another working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("train/a", "train/b", "test/a", "test/b"):
        for i in range(3):
            write_image(tmp_path / f"photos/{name}/{i}.png", random_pixels(9, 9, 3, seed=i))
    fields = data.defaults(
        name="folder", path="photos", image_size=8, eval_crop="resize_crop", resize_size=9
    )
    changes = {"batch_size": 2, "total_steps": 2, "eval_every_steps": 0, "schedule": {}}
    result = _train("run", data=fields, **changes)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded, details = shared_flags.load_model("../run")
    assert details["class_names"] == ("a", "b")
    assert keras_vit.preprocessing_of(loaded) == keras_vit.preprocessing_of(result.model)
    assert_same_weights(loaded, result.model)
    parse(evaluate)
    with pytest.raises(ValueError, match="data of the run cannot be loaded; set --data"):
        shared_flags.load_data(loaded, details)
    # A checkpoint knows the shapes of missing data.
    inputs = training.load_checkpoint("../run", lambda line: None)[0].inputs
    assert (inputs.image_shape, inputs.test.num_examples) == ((8, 8, 3), 6)
    with pytest.raises(ValueError, match="must be loaded with `data.from_config`"):
        inputs.eval_batches()


def test_unfinished_run_loads_checkpoint_instead_of_export(tmp_path, capsys):
    """The export of an unfinished run may be old, for example if the run was extended with --change
    and stopped."""
    result = _train(tmp_path, total_steps=3, eval_every_steps=0)
    names = result.inputs.test.class_names
    old = keras_vit.VisionTransformer(**small_run.MODEL, classes=len(names))
    export.saved_model(old, tmp_path / "export", class_names=names, signatures=("tensor",))
    message = "its export may be older: using the newest checkpoint"
    assert_same_weights(shared_flags.load_model(str(tmp_path))[0], result.model)
    assert message in capsys.readouterr().err
    (tmp_path / "results.json").write_text("{}")
    assert_same_weights(shared_flags.load_model(str(tmp_path))[0], old)
    assert message not in capsys.readouterr().err


def test_remote_file_error_is_one_line(monkeypatch):
    def fail(path):
        raise OSError("HTTP 503\nmore")

    monkeypatch.setattr(files, "exists", fail)
    with pytest.raises(ValueError, match=r"\(HTTP 503\).*='gs://bucket/model.keras'$"):
        shared_flags.load_model("gs://bucket/model.keras")
