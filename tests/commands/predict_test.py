"""Tests of `keras-vit predict`."""

import csv
import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data, evaluation, export, training
from keras_vit.commands import image_files, predict, shared_flags

from ..shared import assert_same_arrays
from ..training import small_run
from .conftest import error_line, random_pixels, write_image


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns a folder that stores one model as `run` (a workdir without an export), `export` and
    `model.keras`."""
    folder = tmp_path_factory.mktemp("predict")
    config = small_run.config_of(total_steps=3, eval_every_steps=0)
    result = training.run(
        config, training.Workdir(folder / "run", config.to_dict()), lambda line: None
    )
    result.model.save(folder / "model.keras")
    names = result.inputs.test.class_names
    export.saved_model(
        result.model, folder / "export", class_names=names, signatures=("serving_default",)
    )
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Returns a folder of photos that also contains other kinds of files."""
    folder = tmp_path_factory.mktemp("photos")
    for name, channels in (
        ("a b.png", 3),
        ("alpha.png", 4),
        ("class/gray.PNG", 1),
        ("class/deeper/gray, too.jpg", 1),
    ):
        write_image(folder / name, random_pixels(20, 30, channels))
    content = (folder / "class/deeper/gray, too.jpg").read_bytes()
    (folder / "class/broken.jpg").write_bytes(content[:99])
    (folder / "notes.txt").write_text("Dear Sir")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


def _predict(source, paths, batch_size=3, flip=False):
    classifier = image_files.Classifier(*shared_flags.load_model(str(source)))
    function = classifier.probabilities
    if flip:
        function = functools.partial(predict.mean_of_mirrored, function)
    rows = predict.predict(classifier.reader, function, paths, batch_size)
    return {path.name: row for path, row in rows}


def test_run_export_and_keras_file_predict_equally(run, photos, capsys):
    paths = image_files.find_images([photos])
    found = [str(path.relative_to(photos)) for path in paths]
    assert found == [
        "a b.png",
        "alpha.png",
        "class/broken.jpg",
        "class/deeper/gray, too.jpg",
        "class/gray.PNG",
    ]
    run_rows, export_rows, file_rows = (
        _predict(run / name, paths) for name in ("run", "export", "model.keras")
    )
    assert list(run_rows) == ["a b.png", "alpha.png", "gray, too.jpg", "gray.PNG"]
    assert capsys.readouterr().err.count("class/broken.jpg cannot be read: it is damaged.") == 3
    assert_same_arrays(export_rows, run_rows)
    assert_same_arrays(file_rows, run_rows)
    signature = tf.saved_model.load(str(run / "export" / "1")).signatures["serving_default"]
    for path in (path for path in paths if path.name in run_rows):
        served = signature(image_bytes=tf.constant([path.read_bytes()]))["probabilities"][0]
        np.testing.assert_allclose(served, run_rows[path.name], atol=1e-6)


def test_folders_are_listed_as_in_training(tmp_path):
    photos = tmp_path / "photos"
    hidden = photos / ".ipynb_checkpoints"
    for path in (
        photos / "a/0.png",
        photos / "a/@eaDir/0.png",
        photos / "__MACOSX/2.png",
        hidden / "3.png",
        tmp_path / "elsewhere/4.png",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (photos / "b").symlink_to(tmp_path / "elsewhere")
    found = image_files.find_images([photos])
    assert found == [photos / "a/0.png", photos / "b/4.png"]
    source = data.folder(photos)
    assert [source.name_of(i) for i in range(source.num_examples)] == [str(path) for path in found]
    assert image_files.find_images([hidden]) == [hidden / "3.png"]  # named by the user


def test_predict_preprocessing_matches_evaluation(run, photos):
    model, details = shared_flags.load_model(str(run / "export"))
    inputs = evaluation.load_inputs(model, "folder", str(photos), splits=("",))
    assert inputs.test.num_examples == 2  # files in class/deeper are ignored
    images = next(iter(inputs.eval_batches()))[0].numpy()
    reader = image_files.Classifier(model, details).reader
    np.testing.assert_allclose(
        reader.read("", (photos / "class" / "gray.PNG").read_bytes())[0], images[1], atol=2e-7
    )


def test_flip_averages_an_image_and_its_mirror_image(run, tmp_path):
    pixels = random_pixels(20, 30, 3, seed=1)
    write_image(tmp_path / "image.png", pixels)
    write_image(tmp_path / "mirror.png", pixels[:, ::-1])
    paths = image_files.find_images([tmp_path])
    plain = _predict(run / "model.keras", paths)
    flipped = _predict(run / "model.keras", paths, flip=True)
    expected = (plain["image.png"] + plain["mirror.png"]) / 2
    assert np.abs(plain["image.png"] - plain["mirror.png"]).max() > 1e-3
    for row in flipped.values():
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_wide_table_has_a_column_for_each_class(run, photos, run_predict, tmp_path):
    output = tmp_path / "wide.csv"
    names = tmp_path / "names.txt"
    names.write_text("".join(f"class {i}, or so\n" for i in range(10)))
    flags = (f"--class_names={names}", f"--output={output}", "--csv", "--wide", "--tta=flip")
    with pytest.raises(SystemExit):  # one file is damaged
        run_predict(f"--model={run}/model.keras", *flags, photos)
    header, *rows = csv.reader(output.read_text().splitlines())
    assert header == ["id", *names.read_text().splitlines()]
    assert [row[0] for row in rows] == ["a b", "alpha", "gray, too", "gray"]
    expected = _predict(run / "model.keras", image_files.find_images([photos]), flip=True)
    np.testing.assert_array_equal(np.float32([row[1:] for row in rows]), [*expected.values()])


def test_wide_table_refuses_two_files_of_one_id(run, photos, run_predict, tmp_path):
    (tmp_path / "alpha.jpg").touch()
    with pytest.raises(ValueError, match="must be unique.*alpha.png.*alpha.jpg"):
        run_predict(f"--model={run}/model.keras", "--csv", "--wide", photos, tmp_path)


@pytest.mark.parametrize("name", ["id", "class 3"])
def test_wide_table_refuses_two_columns_of_one_name(name, run, photos, run_predict, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("".join(f"class {i}\n" for i in range(9)) + name)
    with pytest.raises(ValueError, match=f"unique and other than 'id'.*'{name}'"):
        run_predict(
            f"--model={run}/model.keras", f"--class_names={names}", "--csv", "--wide", photos
        )


def test_prints_a_line_for_each_image(run, photos, cli):
    done = cli("predict", f"--model={run}/export", photos / "a b.png", photos, "--top=2")
    assert done.returncode == 1
    assert "1 of 6 files cannot be read" in done.stderr
    assert len(done.stdout.splitlines()) == 5
    assert done.stdout.count(" %, ") == 5


@pytest.fixture
def written(run, photos, run_predict, tmp_path, capsys):
    """Returns a function that writes predictions in a format, and returns their lines."""

    def write(flag):
        output = tmp_path / "predictions"
        with pytest.raises(SystemExit, match="1"):  # one file is damaged
            run_predict(f"--model={run}/export", flag, "--top=2", f"--output={output}", photos)
        assert capsys.readouterr().out == f"wrote {output}: 4 images\n"
        return output.read_text().splitlines()

    return write


def test_json_has_an_object_for_each_image(written):
    rows = [json.loads(line) for line in written("--json")]
    assert len(rows) == 4
    assert rows[2]["image"].endswith("gray, too.jpg")
    best, second = rows[0]["classes"]
    assert best["probability"] >= second["probability"]


def test_csv_has_a_row_for_each_rank(written):
    rows = list(csv.DictReader(written("--csv")))
    assert [row["rank"] for row in rows] == ["1", "2"] * 4
    assert rows[4]["image"].endswith("gray, too.jpg")
    assert 0 < float(rows[1]["probability"]) <= float(rows[0]["probability"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jpg"], "does not exist. Received: nowhere.jpg"),
        (["RUN/export/1/variables"], "contains no images"),
        (["PHOTOS", "--json", "--csv"], "--json or --csv, not both"),
        (["PHOTOS", "--wide"], "--wide needs --csv"),
        (["PHOTOS", "--csv", "--wide", "--top=5"], "--top does not apply"),
    ],
)
def test_rejects_bad_arguments(arguments, message, run, photos, run_predict):
    words = [word.replace("RUN", str(run)).replace("PHOTOS", str(photos)) for word in arguments]
    with pytest.raises(ValueError, match=message):
        run_predict(f"--model={run}/export", *words)


def test_images_are_required(cli):
    assert "IMAGES... are expected" in error_line(cli("predict", "--model=a"))


def test_predict_needs_a_static_image_size(photos, run_predict, tmp_path):
    images = keras.Input((None, None, 3))
    means = keras.layers.GlobalAveragePooling2D()(images)
    keras.Model(images, keras.layers.Dense(2)(means)).save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="static image size"):
        run_predict(f"--model={tmp_path}/model.keras", photos)
