"""Tests of `keras-vit predict` with classifiers."""

import csv
import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import data, export
from keras_vit.commands import image_files, predict, shared_flags

from ..shared import SIZES, random_images, randomize
from .conftest import error_line, random_pixels, write_image

# The images of the folder `photos`, in the order of their predictions. The third is damaged.
NAMES = [
    "a b.png",
    "alpha.png",
    "class/broken.jpg",
    "class/deeper/gray, too.jpg",
    "class/gray.PNG",
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Returns the folder of an export."""
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3), classes=10)
    path = tmp_path_factory.mktemp("export")
    names = [f"class {i}" for i in range(10)]
    return export.saved_model(
        randomize(model, 0.3), path, class_names=names, signatures=("serving_default",)
    )


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Returns a folder of photos that also contains other kinds of files."""
    folder = tmp_path_factory.mktemp("photos")
    for name, channels in zip(NAMES, (3, 4, 3, 1, 1)):
        write_image(folder / name, random_pixels(20, 30, channels))
    broken = folder / "class/broken.jpg"
    broken.write_bytes(broken.read_bytes()[:99])
    (folder / "notes.txt").write_text("Dear Sir")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


def _predict(exported, paths, flip=False):
    """Returns the probabilities of each readable file by its name, from batches of three."""
    classifier = image_files.Classifier(*shared_flags.load_model(exported))
    function = classifier.probabilities
    if flip:
        function = functools.partial(predict.mean_of_mirrored, function)
    rows = predict.predict(classifier.reader, function, paths, 3)
    return {path.name: row for path, row in rows}


def test_predictions_are_those_of_the_server(exported, photos, capsys):
    paths = image_files.find_images([photos])
    assert paths == [photos / name for name in NAMES]
    predicted = _predict(exported, paths)
    assert list(predicted) == ["a b.png", "alpha.png", "gray, too.jpg", "gray.PNG"]
    assert "class/broken.jpg cannot be read: it is damaged." in capsys.readouterr().err
    signature = tf.saved_model.load(exported).signatures["serving_default"]
    del paths[2]  # the damaged file
    content = tf.constant([path.read_bytes() for path in paths])
    served = signature(image_bytes=content)["probabilities"]
    np.testing.assert_allclose([*predicted.values()], served, atol=1e-6)


def test_folders_are_listed_as_in_training(tmp_path):
    photos = tmp_path / "photos"
    for name in (
        "photos/a/0.png",
        "photos/a/@eaDir/1.png",
        "photos/__MACOSX/2.png",
        "photos/.hidden/3.png",
        "elsewhere/4.png",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (photos / "b").symlink_to(tmp_path / "elsewhere")
    found = image_files.find_images([photos])
    assert found == [photos / "a/0.png", photos / "b/4.png"]
    source = data.folder(photos)
    assert [source.name_of(i) for i in range(source.num_examples)] == [str(path) for path in found]
    # A hidden folder is read if the user names it.
    assert image_files.find_images([photos / ".hidden"]) == [photos / ".hidden/3.png"]


def test_flip_averages_an_image_and_its_mirror_image():
    images = random_images((2, 4, 6, 3))
    means = predict.mean_of_mirrored(lambda images: images[:, 0, 0], images)
    np.testing.assert_allclose(means, (images[:, 0, 0] + images[:, 0, -1]) / 2)


def test_every_row_of_a_batch_is_an_image(exported, photos):
    """NaFlex models refuse rows of zeros."""
    reader = image_files.Classifier(*shared_flags.load_model(exported)).reader
    batches = []

    def embed(images):
        batches.append(images)
        return images

    embedded = dict(predict.predict(reader, embed, [photos / name for name in NAMES], 3))
    assert len(embedded) == 4
    # Each of the two batches has two readable files.
    for first, _, third in batches:
        np.testing.assert_array_equal(first, third)


def test_wide_table_has_a_column_for_each_class(exported, photos, run_predict, tmp_path):
    output = tmp_path / "wide.csv"
    names = tmp_path / "names.txt"
    names.write_text("".join(f"class {i}, or so\n" for i in range(10)))
    flags = (f"--model={exported}", f"--class_names={names}", f"--output={output}")
    with pytest.raises(SystemExit):  # one file is damaged
        run_predict(*flags, "--csv", "--wide", "--tta=flip", "--batch_size=3", photos)
    header, *rows = csv.reader(output.read_text().splitlines())
    assert header == ["id", *names.read_text().splitlines()]
    assert [row[0] for row in rows] == ["a b", "alpha", "gray, too", "gray"]
    expected = _predict(exported, image_files.find_images([photos]), flip=True)
    np.testing.assert_array_equal(np.float32([row[1:] for row in rows]), [*expected.values()])


def test_wide_table_refuses_two_files_of_one_id(exported, photos, run_predict, tmp_path):
    (tmp_path / "alpha.jpg").touch()
    with pytest.raises(ValueError, match="must be unique.*'alpha'"):
        run_predict(f"--model={exported}", "--csv", "--wide", photos, tmp_path)


@pytest.mark.parametrize("name", ["id", "class 3"])
def test_wide_table_refuses_two_columns_of_one_name(name, exported, photos, run_predict, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("".join(f"class {i}\n" for i in range(9)) + name)
    flags = (f"--model={exported}", f"--class_names={names}", "--csv", "--wide")
    with pytest.raises(ValueError, match=f"unique and other than 'id'.*'{name}'"):
        run_predict(*flags, photos)


def test_prints_a_line_for_each_image(exported, photos, cli):
    done = cli("predict", f"--model={exported}", photos / "a b.png", photos, "--top=2")
    assert done.returncode == 1
    assert "1 of 6 files cannot be read" in done.stderr
    assert [line.count(" %") for line in done.stdout.splitlines()] == 5 * [2]


@pytest.fixture
def written(exported, photos, run_predict, tmp_path, capsys):
    """Returns a function that writes predictions in a format, and returns their lines."""

    def write(flag):
        output = tmp_path / "predictions"
        with pytest.raises(SystemExit, match="1"):  # one file is damaged
            run_predict(f"--model={exported}", flag, "--top=2", f"--output={output}", photos)
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
        (["EXPORT/variables"], "contains no images"),
        (["EXPORT", "--json", "--csv"], "--json or --csv, not both"),
        (["EXPORT", "--wide"], "--wide needs --csv"),
        (["EXPORT", "--csv", "--wide", "--top=5"], "--top does not apply"),
    ],
)
def test_rejects_bad_arguments(arguments, message, exported, run_predict):
    arguments = [argument.replace("EXPORT", exported) for argument in arguments]
    with pytest.raises(ValueError, match=message):
        run_predict(f"--model={exported}", *arguments)


def test_images_are_required(cli):
    assert "IMAGES... are expected" in error_line(cli("predict", "--model=a"))


def test_predict_needs_a_static_image_size(photos, run_predict, tmp_path):
    images = keras.Input((None, None, 3))
    means = keras.layers.GlobalAveragePooling2D()(images)
    keras.Model(images, keras.layers.Dense(2)(means)).save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="static image size"):
        run_predict(f"--model={tmp_path}/model.keras", photos)
