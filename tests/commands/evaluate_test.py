"""Tests of `keras-vit evaluate`."""

import json
import types

import pytest

import keras_vit
from keras_vit import evaluation
from keras_vit.commands import evaluate
from keras_vit.evaluation.checks import check_class_names
from keras_vit.files import as_path

from ..shared import SIZES
from .conftest import error_line, random_pixels, write_image


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.keras"
    keras_vit.VisionTransformer(**SIZES, classes=10, input_shape=(8, 8, 3)).save(path)
    return path


def test_evaluate_prints_and_writes_metrics_and_a_page(model, cli, tmp_path):
    flags = (f"--model={model}", f"--output={tmp_path}", "--data=digits", "--pages")
    done = cli("evaluate", *flags, "--evals=top1:digits,calibration")
    assert done.returncode == 0, done.stderr
    assert "top1:digits  accuracy" in done.stdout
    assert (tmp_path / "index.html").exists()
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["metrics"]) == {"top1:digits", "calibration"}
    assert results["data"] == "digits"


def test_all_evaluators_are_checked_before_the_first_runs(model, cli, tmp_path):
    flags = (f"--model={model}", "--data=digits", "--evals=top1,segmentation")
    done = cli("evaluate", *flags, f"--output={tmp_path}/results")
    assert "Segmentation needs data with masks" in error_line(done)
    assert "evaluated top1" not in done.stdout


def test_folder_of_a_run_is_refused_as_output(tmp_path):
    for folder in (tmp_path / "new", as_path("ram://evaluate_test/new"), tmp_path):
        evaluate.check_not_a_run(folder)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="not a run's"):
        evaluate.check_not_a_run(tmp_path)


def test_all_images_of_a_folder_are_evaluated(model, cli, tmp_path):
    for i in range(20):
        write_image(tmp_path / "photos" / str(i // 2) / f"{i}.png", random_pixels(8, 8, 3, seed=i))
    flags = [f"--model={model}", f"--data={tmp_path}/photos", f"--output={tmp_path}/out"]
    done = cli("evaluate", *flags, "--data_split=all")
    assert done.returncode == 0, done.stderr
    assert "20 test images of" in done.stdout
    assert "warning" not in done.stdout
    done = cli("evaluate", *flags, "--data_split=all", "--evals=knn")
    assert "do not train" in error_line(done)


def test_classes_at_other_positions_are_refused():
    test = types.SimpleNamespace(class_names=("Cat", "Dog", "zebra"))
    inputs = types.SimpleNamespace(test=test, target="classes")
    with pytest.raises(ValueError, match="order of the model's outputs. Received: .'dog'. at"):
        check_class_names(("cat", "cow", "dog"), inputs)


def test_other_names_of_classes_are_logged(caplog):
    test = types.SimpleNamespace(class_names=("Hund", "katze"))
    check_class_names(("dog", "cat"), types.SimpleNamespace(test=test, target="classes"))
    assert "2 classes of the dataset have other names" in caplog.text
    assert "hund with dog" in caplog.text


def test_all_images_of_other_datasets_are_not_evaluated(parse):
    parse(evaluate, "--evals=top1,top1:digits", "--data=digits", "--data_split=all")
    evaluators = evaluation.get(evaluate.FLAGS.evals)
    with pytest.raises(ValueError, match="--data_split=all does not apply.*top1,top1:digits"):
        evaluate.load_data(None, {}, evaluators, {})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data=digits", "--evals=top1:digits"], "--data_path do not apply"),
        (["--data_path=.", "--evals=top1:digits"], "--data_path do not apply"),
        (["--templates=a {}"], "--tokenizer need --classes"),
        (["--tokenizer=a"], "--tokenizer need --classes"),
        (["--classes=a", "--text_embeddings=b.npz"], "not both"),
        ([], "needs a dataset, as in top1:digits"),
        (["--evals="], "at least one evaluator"),
        (["--model="], "either --model, or at least one of --variant"),
    ],
)
def test_rejects_bad_flags(flags, message, model, cli, tmp_path):
    done = cli("evaluate", f"--model={model}", f"--output={tmp_path / 'out'}", *flags)
    assert message in error_line(done)
    assert not (tmp_path / "out").exists()
