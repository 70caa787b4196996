"""Tests of `keras-vit predict`."""

import csv
import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver

import keras_vit
from keras_vit import data, evaluation, export, training
from keras_vit.commands import image_files, predict, shared_flags

from ..shared import SIZES
from ..training import small_run


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
    (folder / "class" / "deeper").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 4)).astype(np.uint8)
    encoded = {
        "a b.png": tf.io.encode_png(pixels[..., :3]),
        "alpha.png": tf.io.encode_png(pixels),
        "class/gray.PNG": tf.io.encode_png(pixels[..., :1]),
        "class/deeper/gray, too.jpg": tf.io.encode_jpeg(pixels[..., :1]),
    }
    for name, content in encoded.items():
        (folder / name).write_bytes(content.numpy())
    (folder / "class" / "broken.jpg").write_bytes(
        encoded["class/deeper/gray, too.jpg"].numpy()[:99]
    )
    (folder / "notes.txt").write_text("Dear Sir")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


def _predict(source, paths, batch_size=3, flip=False):
    classifier = image_files.Classifier(*shared_flags.load_model(str(source)))
    function = classifier.probabilities
    if flip:
        function = functools.partial(predict.mean_of_mirrored, function)
    rows = predict.predict(classifier, function, paths, batch_size)
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
    assert (
        capsys.readouterr().err.count(f"{photos}/class/broken.jpg cannot be read: it is damaged.")
        == 3
    )
    signature = tf.saved_model.load(str(run / "export" / "1")).signatures["serving_default"]
    for path in (path for path in paths if path.name in run_rows):
        served = signature(image_bytes=tf.constant([path.read_bytes()]))["probabilities"][0]
        for others in (export_rows, file_rows):
            np.testing.assert_array_equal(others[path.name], run_rows[path.name])
        np.testing.assert_allclose(served, run_rows[path.name], atol=1e-6)


def test_folders_are_listed_as_in_training(tmp_path):
    for name in (
        "a/0.png",
        "a/@eaDir/0.png",
        "@eaDir/1.png",
        "__MACOSX/2.png",
        ".ipynb_checkpoints/3.png",
    ):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(b"")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "4.png").write_bytes(b"")
    (tmp_path / "photos" / "b").symlink_to(tmp_path / "elsewhere")
    found = image_files.find_images([tmp_path / "photos"])
    assert [str(path.relative_to(tmp_path / "photos")) for path in found] == ["a/0.png", "b/4.png"]
    source = data.folder(tmp_path / "photos")
    assert [source.name_of(i) for i in range(source.num_examples)] == [str(path) for path in found]
    hidden = tmp_path / "photos" / ".ipynb_checkpoints"
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
    pixels = np.random.default_rng(1).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    for name, image in (("image.png", pixels), ("mirror.png", pixels[:, ::-1])):
        (tmp_path / name).write_bytes(tf.io.encode_png(image).numpy())
    paths = image_files.find_images([tmp_path])
    plain = _predict(run / "model.keras", paths)
    flipped = _predict(run / "model.keras", paths, flip=True)
    expected = (plain["image.png"] + plain["mirror.png"]) / 2
    assert np.abs(plain["image.png"] - plain["mirror.png"]).max() > 1e-3
    for row in flipped.values():
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_wide_table_has_a_column_for_each_class(run, photos, tmp_path):
    output = tmp_path / "wide.csv"
    names = tmp_path / "names.txt"
    names.write_text("".join(f"class {i}, or so\n" for i in range(10)))
    arguments = [f"--model={run}/model.keras", f"--class_names={names}", f"--output={output}"]
    with pytest.raises(SystemExit):  # one file is damaged
        _main([*arguments, "--csv", "--wide", "--tta=flip"], photos)
    rows = list(csv.reader(output.read_text().splitlines()))
    assert rows[0] == ["id", *names.read_text().splitlines()]
    assert [row[0] for row in rows[1:]] == ["a b", "alpha", "gray, too", "gray"]
    expected = _predict(run / "model.keras", image_files.find_images([photos]), flip=True)
    np.testing.assert_array_equal(np.float32([row[1:] for row in rows[1:]]), [*expected.values()])


def test_wide_table_refuses_two_files_of_one_id(run, photos, tmp_path):
    (tmp_path / "alpha.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match="must be unique.*alpha.png.*alpha.jpg"):
        _main([f"--model={run}/model.keras", "--csv", "--wide"], photos, tmp_path)
    with pytest.raises(ValueError, match="needs --csv"):
        _main([f"--model={run}/model.keras", "--wide"], photos)


@pytest.mark.parametrize("name", ["id", "class 3"])
def test_wide_table_refuses_two_columns_of_one_name(name, run, photos, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("".join(f"class {i}\n" for i in range(9)) + name)
    arguments = [f"--model={run}/model.keras", f"--class_names={names}", "--csv", "--wide"]
    with pytest.raises(ValueError, match=f"unique and other than 'id'.*'{name}'"):
        _main(arguments, photos)


def test_wide_table_refuses_the_number_of_classes(run, photos):
    with pytest.raises(ValueError, match="--top does not apply.*top=5"):
        _main([f"--model={run}/model.keras", "--csv", "--wide", "--top=5"], photos)


def _main(arguments, *sources):
    """Calls the command in this process."""
    with flagsaver.flagsaver():
        known = set(predict.FLAGS)
        try:
            predict.define_flags()
            predict.FLAGS(["predict", *arguments])
            predict.main(*map(str, sources))
        finally:
            for name in set(predict.FLAGS) - known:
                delattr(predict.FLAGS, name)


@pytest.mark.parametrize("output_format", ["json", "csv", ""])
def test_output_files_are_readable(output_format, run, photos, scripts, tmp_path):
    output = tmp_path / "predictions"
    flags = [f"--{output_format}"] if output_format else []
    done = scripts.run(
        "-m",
        "keras_vit",
        "predict",
        f"--model={run}/export",
        photos / "a b.png",
        photos,
        "--top=2",
        *flags,
        f"--output={output}",
    )
    assert done.returncode == 1 and "1 of 6 files cannot be read" in done.stderr, done.stderr
    assert done.stdout == f"wrote {output}: 5 images\n"
    text = output.read_text()
    if output_format == "json":
        rows = [json.loads(line) for line in text.splitlines()]
        first = rows[0]["classes"]
        assert rows[3]["image"].endswith("gray, too.jpg")
        assert first[0]["probability"] >= first[1]["probability"]
        assert len(rows) == 5
        assert len(first) == 2
    elif output_format == "csv":
        rows = list(csv.DictReader(text.splitlines()))
        assert [row["rank"] for row in rows] == ["1", "2"] * 5
        assert rows[6]["image"].endswith("gray, too.jpg")
        assert 0 < float(rows[1]["probability"]) <= float(rows[0]["probability"])
    else:
        assert len(text.splitlines()) == 5
        assert text.count(" %, ") == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model=RUN/export"], "IMAGES... are expected"),
        (
            ["--model=RUN/export", "nowhere.jpg"],
            "The file or folder does not exist. Received: nowhere.jpg",
        ),
        (["--model=RUN/export", "RUN/export/1/variables"], "The folder contains no images (.jpg, "),
        (
            ["--model=RUN/exprt", "PHOTOS"],
            "The file or folder does not exist. --model takes the workdir of a run",
        ),
        (["PHOTOS"], "Pass either --model, or at least one of --variant"),
        (
            ["--model=RUN/export", "PHOTOS", "--output=nowhere/x"],
            "The folder of --output must exist",
        ),
        (["--model=RUN/export", "PHOTOS", "--json", "--csv"], "Pass --json or --csv, not both"),
        (["--model=RUN/backbone.keras", "PHOTOS"], "The model has no classes"),
    ],
)
def test_bad_input_prints_an_error(arguments, message, run, photos, scripts):
    if not (run / "backbone.keras").exists():
        keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3), include_top=False).save(
            run / "backbone.keras"
        )
    words = [word.replace("RUN", str(run)).replace("PHOTOS", str(photos)) for word in arguments]
    done = scripts.run("-m", "keras_vit", "predict", *words)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: {message}")


def test_predict_needs_a_static_image_size(photos, scripts, tmp_path):
    x = keras.Input((None, None, 3))
    keras.Model(x, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(x))).save(
        tmp_path / "model.keras"
    )
    done = scripts.run("-m", "keras_vit", "predict", f"--model={tmp_path}/model.keras", photos)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: The model must have a static image size")
