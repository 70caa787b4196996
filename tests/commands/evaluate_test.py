"""Tests of the commands `evaluate` and `inspect`: outputs and errors."""

import json
import types

import numpy as np
import pytest

import keras_vit
from keras_vit import data, evaluation
from keras_vit.commands import evaluate as evaluate_command
from keras_vit.commands import inspect_model
from keras_vit.evaluation.collecting import check_class_names
from keras_vit.files import as_path

from ..shared import SIZES
from .conftest import error_line, random_pixels, write_image

MODEL = {**SIZES, "classes": 10, "input_shape": (8, 8, 3)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.keras"
    keras_vit.VisionTransformer(**MODEL).save(path)
    return path


def test_inspect_writes_a_report_for_one_image(model, cli, tmp_path):
    pytest.importorskip("matplotlib")
    write_image(tmp_path / "one.jpg", random_pixels(9, 8, 3))
    flags = (f"--model={model}", f"--data={tmp_path}/one.jpg", f"--output={tmp_path}/pages")
    done = cli("inspect", *flags)
    assert done.returncode == 0, done.stderr
    assert "images of" in done.stdout
    assert (tmp_path / "pages" / "index.html").exists()


def test_inspect_draws_images_of_all_classes(monkeypatch):
    pixels = np.repeat(np.arange(12, dtype="uint8"), 8 * 8 * 3).reshape(12, 8, 8, 3)
    source = data.arrays(pixels, np.arange(12) // 4, ["a", "b", "c"])  # sorted by class
    inputs = data.InputPipeline(source, source, {}, batch_size=4, seed=0, max_bad_share=0.0)
    monkeypatch.setattr(
        inspect_model, "FLAGS", types.SimpleNamespace(data="", data_path="", shown=3)
    )
    monkeypatch.setattr(inspect_model.shared_flags, "load_data", lambda *_, **__: (inputs, ""))
    images, _ = inspect_model.read_images(None, {}, 9)
    values = np.round(127.5 * images[:, 0, 0, 0] + 127.5).astype(int).tolist()
    assert len(set(values)) == 9
    assert [value // 4 for value in values[:3]] == [0, 1, 2]


@pytest.fixture
def inspect_flags(monkeypatch):
    """Returns a function that sets the flags of `keras-vit inspect`."""

    def set_flags(**flags):
        flags = types.SimpleNamespace(**{"data_path": "", "shown": 2, "class_names": "", **flags})
        for module in (inspect_model, inspect_model.shared_flags):
            monkeypatch.setattr(module, "FLAGS", flags)

    return set_flags


def test_inspect_skips_damaged_files(inspect_flags, tmp_path, monkeypatch, capsys):
    for i in (0, 2, 3):
        write_image(tmp_path / "digits" / f"{i}.png", random_pixels(8, 8, 3))
    (tmp_path / "digits" / "1.png").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    inspect_flags(data="./digits")
    images, names = inspect_model.read_images(keras_vit.VisionTransformer(**MODEL), {}, 10)
    assert sorted(names) == ["0.png", "2.png", "3.png"]
    assert images.shape == (3, 8, 8, 3)
    assert "1.png cannot be read: it is not an image" in capsys.readouterr().err
    details = {"recipe": {"data": {"max_megapixels": 1e-5}}}
    with pytest.raises(ValueError, match="At least one image must be readable"):
        inspect_model.read_images(keras_vit.VisionTransformer(**MODEL), details, 10)


@pytest.mark.parametrize("flags", [{"data": "digits"}, {"data": "./digits", "data_path": "."}])
def test_inspect_prefers_datasets_to_folders(flags, inspect_flags, tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    asked = []
    load_data = lambda *_, **__: asked.append(1) or (None, "")  # noqa: E731
    monkeypatch.setattr(inspect_model.shared_flags, "load_data", load_data)
    inspect_flags(**flags)
    with pytest.raises(ValueError, match="--data must name"):
        inspect_model.read_images(keras_vit.VisionTransformer(**MODEL), {}, 10)
    assert asked


def test_inspect_rejects_missing_file_of_class_names(inspect_flags):
    inspect_flags(data="digits", class_names="nothing.txt")
    with pytest.raises(ValueError, match="does not exist.*class_names='nothing.txt'"):
        inspect_model.find_classifier(keras_vit.VisionTransformer(**MODEL), {})


def test_evaluate_prints_and_writes_metrics_and_a_page(model, cli, tmp_path):
    evaluate = ("evaluate", f"--model={model}", f"--output={tmp_path}")
    done = cli(*evaluate, "--evals=top1:digits,calibration", "--data=digits", "--pages")
    assert done.returncode == 0, done.stderr
    assert "top1:digits  accuracy" in done.stdout
    assert (tmp_path / "index.html").exists()
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["metrics"]) == {"top1:digits", "calibration"}
    assert results["data"] == "digits"


def test_all_evaluators_are_checked_before_the_first_runs(model, cli, tmp_path):
    output = tmp_path / "results"
    flags = (f"--model={model}", "--data=digits", "--evals=top1,segmentation")
    done = cli("evaluate", *flags, f"--output={output}")
    assert "Segmentation needs data with masks" in error_line(done)
    assert "evaluated top1" not in done.stdout


def test_the_folder_of_a_run_is_no_output(tmp_path):
    evaluate_command.check_folder(tmp_path / "new")
    evaluate_command.check_folder(as_path("ram://evaluate_test/new"))
    evaluate_command.check_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="not a run's"):
        evaluate_command.check_folder(tmp_path)


def test_all_images_of_a_folder_are_evaluated(model, cli, tmp_path):
    for i in range(20):
        write_image(tmp_path / "photos" / str(i // 2) / f"{i}.png", random_pixels(8, 8, 3, seed=i))
    flags = [f"--model={model}", f"--data={tmp_path}/photos", f"--output={tmp_path}/out"]
    done = cli("evaluate", *flags, "--data_split=all", "--evals=top1")
    assert done.returncode == 0, done.stderr
    assert "20 test images of" in done.stdout
    assert "warning" not in done.stdout
    done = cli("evaluate", *flags, "--data_split=all", "--evals=knn")
    assert "do not train" in error_line(done)


def test_all_images_of_other_datasets_are_not_evaluated(monkeypatch):
    flags = types.SimpleNamespace(evals=["top1", "top1:digits"], data="digits", data_split="all")
    monkeypatch.setattr(evaluate_command, "FLAGS", flags)
    evaluators = evaluation.get(flags.evals)
    with pytest.raises(ValueError, match="--data_split=all does not apply.*top1,top1:digits"):
        evaluate_command.load_data(None, {}, evaluators, {})


@pytest.mark.parametrize(
    ("names", "classes", "moved"),
    [
        (("cat", "cow", "dog"), ("cat", "dog", "zebra"), "dog"),
        (("dog", "cat"), ("Cat", "Dog"), "cat"),
    ],
)
def test_classes_at_other_positions_are_refused(names, classes, moved):
    test = types.SimpleNamespace(class_names=classes)
    inputs = types.SimpleNamespace(test=test, target="classes")
    with pytest.raises(ValueError, match=f"order of the model's outputs.*{moved}"):
        check_class_names(names, inputs)


def test_other_names_of_classes_are_logged(caplog):
    test = types.SimpleNamespace(class_names=("Hund", "katze"))
    check_class_names(("dog", "cat"), types.SimpleNamespace(test=test, target="classes"))
    assert "2 classes of the dataset have other names" in caplog.text
    assert "hund with dog" in caplog.text


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        ("evaluate", ["--data=digits", "--evals=top1:digits"], "--data_path do not apply"),
        ("evaluate", ["--data_path=.", "--evals=top1:digits"], "--data_path do not apply"),
        ("evaluate", ["--templates=a {}"], "--tokenizer need --classes"),
        ("evaluate", ["--tokenizer=a"], "--tokenizer need --classes"),
        ("evaluate", [], "needs a dataset, as in top1:digits"),
        ("evaluate", ["--evals="], "at least one evaluator"),
        ("evaluate", ["--model="], "either --model, or at least one of --variant"),
        ("inspect", [], "--data must name an image file"),
    ],
)
def test_rejects_bad_flags(command, flags, message, model, cli, tmp_path):
    done = cli(command, f"--model={model}", f"--output={tmp_path / 'out'}", *flags)
    assert message in error_line(done)
    assert not (tmp_path / "out").exists()
