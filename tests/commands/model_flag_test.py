"""Tests of the flags `--model` and `--data`, with local and remote paths."""

import shutil
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, evaluation, export, files, training
from keras_vit.commands import shared_flags
from keras_vit.export.versions import CARD, MODEL
from keras_vit.models.any_model import logits_activation_of
from keras_vit.training import loop

from ..shared import SIZES
from ..training import small_run

FOLDER = "ram://shared_flags"  # TensorFlow's in-memory file system stands in for gs://


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Returns a model, and saves it in FOLDER as `model.keras` and as versions 9 and 10 of a run's
    export."""
    sizes = {**SIZES, "classes": 3}
    model = keras_vit.VisionTransformer(**sizes, input_shape=(8, 8, 3))
    folder = tmp_path_factory.mktemp("model")
    model.save(folder / "model.keras")
    files.make_dirs(f"{FOLDER}/run")
    files.copy(folder / "model.keras", f"{FOLDER}/model.keras")
    files.write_json(f"{FOLDER}/run/config.json", {})
    export.saved_model(
        model, f"{FOLDER}/run/export", version=10, class_names="xyz", signatures=("tensor",)
    )
    files.make_dirs(f"{FOLDER}/run/export/9/assets.extra")
    files.copy(f"{FOLDER}/model.keras", f"{FOLDER}/run/export/9/{MODEL}")
    card = {**export.load_card(f"{FOLDER}/run/export/10"), "metrics": {"version": 9}}
    files.write_json(f"{FOLDER}/run/export/9/{CARD}", card)
    return model


@pytest.mark.parametrize(
    ("source", "metrics"),
    [
        ("model.keras", None),
        ("run", {}),
        ("run/", {}),
        ("run/export/9", {"version": 9}),
        ("run/export", {}),
    ],
)
def test_remote_model_loads_unchanged(source, metrics, model):
    loaded, details = shared_flags.load_model(f"{FOLDER}/{source}")
    for weight, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)
    if metrics is None:
        assert details == {}
    else:
        assert details["metrics"] == metrics
        assert details["class_names"] == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "nothing.keras",
            "The file or folder does not exist. --model takes .*'ram://shared_flags/nothing.keras'",
        ),
        (
            "empty",
            "The folder contains neither a run nor an export. --model takes the workdir of a run",
        ),
        ("unfinished", "The run has no checkpoint yet"),
        ("damaged", "The file must be JSON"),
    ],
)
def test_rejects_paths_without_a_model(source, message, model):
    files.make_dirs(f"{FOLDER}/unfinished")
    files.write_json(f"{FOLDER}/unfinished/config.json", {})
    files.write_json(f"{FOLDER}/empty/notes.json", {})
    path = f"{FOLDER}/damaged/{CARD}"
    files.make_dirs(path.rpartition("/")[0])
    with files.atomic_write(path) as file:
        file.write("{")
    with pytest.raises(ValueError, match=message):
        shared_flags.load_model(f"{FOLDER}/{source}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("runs/foto", "does not exist.*--weights takes weights.* Received: model='runs/foto'"),
        ("runs", "neither a run nor an export.* Received: model='runs'"),
        ("weights", "--weights takes weights. Received: model='weights'"),
        ("weights/model.safetensors", "--weights takes weights. Received"),
        ("refused", "neither a run nor an export.* Received: model='refused'"),
        ("notes.txt", "^--model takes the workdir of a run, .* Received: model='notes.txt'"),
        ("qqq", r"--model takes the workdir of a run.* a constructor. Received: model='qqq'"),
    ],
)
def test_invalid_model_error_names_alternatives(source, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "runs/photos/config.json",
        "weights/config.json",
        "weights/model.safetensors",
        "notes.txt",
        "refused/lock",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "model.keras").write_text("")
    with pytest.raises(ValueError, match=message):
        shared_flags.load_model(source)


def test_numeric_folder_without_a_card_is_no_model(tmp_path):
    (tmp_path / "runs/7/export/1").mkdir(parents=True)
    with pytest.raises(ValueError, match="neither a run nor an export.* Received: model=.*runs'"):
        shared_flags.load_model(str(tmp_path / "runs"))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cifar", "cifar10"),
        ("Digits", "digits"),
        ("qqq", ""),
    ],
)
def test_unknown_dataset_error_names_alternatives(name, near):
    advice = rf"Did you mean {near}\?" if near else r"The datasets are digits, .*tfds:NAME\."
    with pytest.raises(ValueError, match=rf"takes a folder .* {advice} Received: data='{name}'"):
        shared_flags.check_data_name(name)
    for known in ("", "digits", "tfds:mnist"):
        shared_flags.check_data_name(known)


def test_folder_is_split_as_in_the_run(tmp_path, monkeypatch):
    for i in range(40):
        path = tmp_path / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        keras.utils.save_img(path, np.full((8, 8, 3), i), scale=False)
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    monkeypatch.setattr(
        shared_flags, "FLAGS", types.SimpleNamespace(data=str(tmp_path), data_path="")
    )
    fields = {"test_share": 0.5, "split_seed": 3}
    inputs, _ = shared_flags.load_data(model, {"recipe": {"data": {"name": "folder", **fields}}})
    names = lambda source: [source.short_name(i) for i in range(source.num_examples)]  # noqa: E731
    expected = data.load("folder", path=str(tmp_path), **fields)
    assert [names(inputs.train), names(inputs.test)] == [names(source) for source in expected]
    assert names(shared_flags.load_data(model, {})[0].test) != names(inputs.test)


def test_named_folder_is_tested_whole_unless_it_is_the_run_s(tmp_path, monkeypatch):
    for i in range(20):
        path = tmp_path / "photos" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(path, np.full((8, 8, 3), i), scale=False)
    shutil.copytree(tmp_path / "photos", tmp_path / "split" / "test")
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    monkeypatch.chdir(tmp_path)
    own = {"recipe": {"data": {"name": "folder", "path": "photos"}}}
    other = {"recipe": {"data": {"name": "folder", "path": "elsewhere"}}}
    for folder, details, splits, count, part in (
        ("photos", {}, ("test",), 20, " (all images)"),
        ("photos", other, ("test",), 20, " (all images)"),
        (
            str(tmp_path / "photos"),
            own,
            ("test",),
            2,
            " (held-out images; the others are for training)",
        ),
        ("photos", {}, ("train", "test"), 2, " (held-out images; the others are for training)"),
        ("split", {}, ("test",), 20, ""),
    ):
        monkeypatch.setattr(shared_flags, "FLAGS", types.SimpleNamespace(data=folder, data_path=""))
        inputs, title = shared_flags.load_data(model, details, splits)
        assert (inputs.test.num_examples, title) == (count, f"folder {folder}{part}")


def test_class_names_may_have_a_mark_and_blank_lines(tmp_path):
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbfcat\r\n dog\n\n")
    assert shared_flags.read_class_names(str(tmp_path / "names.txt"), 2) == ["cat", "dog"]
    (tmp_path / "latin.txt").write_bytes("é".encode("latin1"))
    with pytest.raises(ValueError, match="must be a UTF-8 text file .*latin.txt"):
        shared_flags.read_class_names(str(tmp_path / "latin.txt"), 1)


@pytest.mark.parametrize("best, stopped", [(True, True), (True, False), (False, False)])
def test_run_without_export_loads_a_checkpoint(best, stopped, tmp_path, capsys, monkeypatch):
    """Loads the last checkpoint of a finished run, and the best checkpoint of a stopped run."""
    evaluations = (
        {"eval_every_steps": 5} if best else {"eval_every_steps": 0, "checkpoint_every_steps": 8}
    )
    config = small_run.config_of(
        total_steps=9, loss="sigmoid", schedule={"base": 1e-2}, **evaluations
    )
    if stopped:  # simulate a stop before the last evaluation
        note = loop.note_best
        monkeypatch.setattr(
            loop, "note_best", lambda counters, *rest: counters.step < 9 and note(counters, *rest)
        )
    result = training.run(config, training.Workdir(tmp_path, config.to_dict()), lambda line: None)
    if stopped:
        shutil.rmtree(tmp_path / "checkpoints" / "000000009")
    loaded, details = shared_flags.load_model(str(tmp_path))
    assert logits_activation_of(loaded) == "sigmoid"
    assert details["recipe"]["total_steps"] == 9
    assert details["class_names"] == result.inputs.test.class_names
    printed = capsys.readouterr().err
    assert ("best checkpoint by accuracy" in printed and "000000005" in printed) == stopped
    accuracy = evaluation.evaluate(loaded, ["top1"], result.inputs)["top1/accuracy"]
    if stopped:
        rows = training.read_metrics(tmp_path / "evaluations.csv")
        assert accuracy == pytest.approx(rows["accuracy"][0])
    else:
        for weight, expected in zip(loaded.get_weights(), result.model.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, expected)


def test_model_of_a_run_needs_no_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for i in range(12):
        path = tmp_path / "photos" / ("train", "test")[i % 2] / "ab"[i % 3 % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(path, random.integers(0, 256, (9, 9, 3)), scale=False)
    fields = data.defaults(
        name="folder", path="photos", image_size=8, eval_crop="resize_crop", resize_size=9
    )
    changes = {
        "data": fields,
        "batch_size": 2,
        "total_steps": 2,
        "eval_every_steps": 0,
        "schedule": {},
    }
    config = small_run.config_of(**changes)
    result = training.run(config, training.Workdir("run", config.to_dict()), lambda line: None)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded, details = shared_flags.load_model("../run")
    assert details["class_names"] == ("a", "b")
    assert details["recipe"]["data"]["path"] == "photos"
    assert keras_vit.preprocessing_of(loaded) == keras_vit.preprocessing_of(result.model)
    for weight, expected in zip(loaded.get_weights(), result.model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)
    monkeypatch.setattr(shared_flags, "FLAGS", types.SimpleNamespace(data="", data_path=""))
    with pytest.raises(
        ValueError, match="data of the run cannot be loaded; set --data.* Received: "
    ):
        shared_flags.load_data(loaded, details)
    inputs = training.load_checkpoint("../run", lambda line: None)[0].inputs
    assert inputs.image_shape == (8, 8, 3)
    assert inputs.test.num_examples == 6
    with pytest.raises(ValueError, match="must be loaded with `data.from_config`"):
        inputs.eval_batches()


def test_unfinished_run_loads_checkpoint_instead_of_export(tmp_path, capsys):
    """The export of an unfinished run may be old, for example if the run was extended with --change
    and stopped."""
    config = small_run.config_of(total_steps=3, eval_every_steps=0)
    result = training.run(config, training.Workdir(tmp_path, config.to_dict()), lambda line: None)
    names = result.inputs.test.class_names
    old = keras_vit.VisionTransformer(**small_run.MODEL, classes=len(names))
    export.saved_model(old, tmp_path / "export", class_names=names, signatures=("tensor",))
    for done in (False, True):
        if done:
            (tmp_path / "results.json").write_text("{}")
        loaded, _ = shared_flags.load_model(str(tmp_path))
        expected = old if done else result.model
        for weight, value in zip(loaded.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, value)
        printed = capsys.readouterr().err
        assert ("its export may be older: using the newest checkpoint" in printed) != done


def test_remote_file_error_is_one_line(monkeypatch):
    def fail(path):
        raise OSError("HTTP 503\nmore")

    monkeypatch.setattr(files, "exists", fail)
    with pytest.raises(
        ValueError,
        match=r"\(HTTP 503\).*='gs://bucket/model.keras'$",
    ):
        shared_flags.load_model("gs://bucket/model.keras")
