"""Tests of the masks and depths that `keras-vit predict` and `demo` make."""

import re

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit.commands import demo_pixels, pixels
from keras_vit.commands.image_files import Classifier
from keras_vit.evaluation.dense import predict_pixels
from keras_vit.models import DensePredictionTransformer, LinearSegmenter

from ..shared import SIZES, randomize
from .conftest import random_pixels, write_image

NAMES = ["ant", "bee", "cat"]


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with two images of different sizes and a broken file."""
    write_image(tmp_path / "new/a.png", random_pixels(20, 13, 3))
    write_image(tmp_path / "new/deeper/a.png", random_pixels(21, 13, 3, seed=1))
    (tmp_path / "new/broken.jpg").write_bytes(b"\xff\xd8\xff 123")
    return tmp_path / "new"


def read_png(path):
    return tf.io.decode_png(path.read_bytes()).numpy()


def outputs_of(model, path):
    """Returns the outputs `(H, W, channels)` that evaluation computes for an image."""
    return predict_pixels(model, read_png(path), keras_vit.preprocessing_of(model))


def segmenter():
    model = randomize(LinearSegmenter(**SIZES, input_shape=(16, 16, 3), classes=3), 2.0)
    next(w for w in model.weights if "moving_variance" in w.path).assign(np.ones(8))
    return model


def demo_annotations(model, path, **details):
    return demo_pixels.PixelModel(model, details, "title").annotations(path)


def test_masks_have_the_size_of_their_images(folder, tmp_path, capsys):
    model = segmenter()
    assert pixels.write_pixels(model, {"class_names": NAMES}, [folder], tmp_path / "out") == 1
    for name in ("a.png", "deeper/a.png"):
        expected = outputs_of(model, folder / name).argmax(-1)
        mask = read_png(tmp_path / "out/masks" / name)[..., 0]
        np.testing.assert_array_equal(mask, expected)
        assert read_png(tmp_path / "out/overlays" / name).shape == (*mask.shape, 3)
    captured = capsys.readouterr()
    largest = np.bincount(mask.ravel()).argmax()
    share = 100 * np.mean(mask == largest)
    assert f"deeper/a.png  {NAMES[largest]} {share:.1f} %" in captured.out
    assert "broken.jpg cannot be read: it is damaged." in captured.err


def test_demo_shows_the_mask_and_the_share_of_each_class(folder):
    model = segmenter()
    picture, found = demo_annotations(model, folder / "a.png", class_names=NAMES)
    np.testing.assert_array_equal(picture, read_png(folder / "a.png"))
    classes = outputs_of(model, folder / "a.png").argmax(-1)
    expected = {
        f"{name} {100 * np.mean(classes == i):.1f} %": classes == i for i, name in enumerate(NAMES)
    }
    for mask, label in found:
        np.testing.assert_array_equal(mask, expected[label])
    assert sum(mask.sum() for mask, _ in found) == classes.size


def test_depths_are_written(folder, tmp_path):
    sizes = {"features": 8, "level_channels": (4, 4, 4, 4), "levels": (1, 1, 1, 1), **SIZES}
    model = DensePredictionTransformer(**sizes, input_shape=(16, 16, 3), predicts="depth")
    randomize(model, 0.5)
    assert pixels.write_pixels(model, {}, [folder / "a.png"], tmp_path / "out") == 0
    expected = outputs_of(model, folder / "a.png")
    np.testing.assert_array_equal(np.load(tmp_path / "out/depths/a.npy"), expected[..., 0])
    assert read_png(tmp_path / "out/pictures/a.png").shape == expected.shape


@pytest.mark.parametrize(("exif", "shape"), [(None, (20, 13)), (True, (13, 20))])
def test_pixels_are_read_as_the_export_was_served(exif, shape, tmp_path):
    """An export may differ from its model in the EXIF orientation."""
    orientation = Image.Exif()
    orientation[0x0112] = 6  # to be rotated by 90 degrees
    Image.fromarray(random_pixels(20, 13, 3)).save(tmp_path / "a.jpg", exif=orientation)
    model = segmenter()
    pixels.write_pixels(model, {"exif": exif}, [tmp_path / "a.jpg"], tmp_path / "out")
    assert read_png(tmp_path / "out/masks/a.png").shape[:2] == shape
    picture, _ = demo_annotations(model, tmp_path / "a.jpg", exif=exif)
    assert picture.shape[:2] == shape


def test_two_images_of_one_name_are_refused(folder, tmp_path):
    paths = [folder / "a.png", folder / "deeper/a.png"]
    with pytest.raises(ValueError, match="different names.*a twice"):
        pixels.write_pixels(segmenter(), {}, paths, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_classifiers_refuse_models_of_pixels():
    with pytest.raises(ValueError, match="predicts pixels, not classes"):
        Classifier(segmenter(), {"class_names": NAMES})


@pytest.mark.parametrize(("channels", "bits"), [(3, 16), (1, 8), (4, 8)])
def test_pictures_of_other_images(channels, bits, tmp_path):
    white = 2**bits - 1
    middle = (white / 2,) * channels
    preprocessing = keras_vit.Preprocessing(middle, middle, bit_depth=bits)
    model = LinearSegmenter(
        **SIZES, input_shape=(16, 16, channels), classes=3, preprocessing=preprocessing
    )
    values = np.random.default_rng(0).integers(0, white, (20, 13, channels))
    path = tmp_path / "a.png"
    path.write_bytes(tf.io.encode_png(values.astype(f"uint{bits}")).numpy())
    assert pixels.write_pixels(model, {}, [path], tmp_path / "out") == 0
    expected = np.broadcast_to(values[..., :3], (20, 13, 3)) * 255 / white
    # A model of zeros predicts class 0, whose color is black.
    drawn = read_png(tmp_path / "out/overlays/a.png")
    np.testing.assert_allclose(drawn, expected / 2, atol=1)


def test_class_names_and_top_apply_to_masks(folder, run_predict, tmp_path, capsys):
    segmenter().save(tmp_path / "m.keras")
    names = tmp_path / "names.txt"
    flags = (f"--model={tmp_path}/m.keras", f"--output={tmp_path}/out", f"--class_names={names}")
    names.write_text("\n".join(NAMES))
    run_predict(*flags, "--top=1", folder / "a.png")
    assert re.search(r"a.png  (ant|bee|cat) \S+ %\n", capsys.readouterr().out)
    names.write_text("ant\nbee\n")
    with pytest.raises(ValueError, match="must be 3 names.*Received: 2"):
        run_predict(*flags, folder / "a.png")


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        (
            keras_vit.VisionTransformer,
            ["--windows"],
            "--windows is for models that predict pixels",
        ),
        (LinearSegmenter, ["--json"], "needs a folder --output, and no --json"),
    ],
    ids=["classes", "pixels"],
)
def test_rejects_flags_of_other_models(model, flags, message, folder, run_predict, tmp_path):
    model(**SIZES, input_shape=(8, 8, 3), classes=3).save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match=message):
        run_predict(f"--model={tmp_path}/m.keras", *flags, folder / "a.png")
