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
pytestmark = pytest.mark.one_backend  # evaluation of dense models is tested on both


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with two images of different sizes and a broken file."""
    write_image(tmp_path / "new/a.png", random_pixels(20, 13, 3))
    write_image(tmp_path / "new/deeper/a.png", random_pixels(21, 13, 3, seed=1))
    (tmp_path / "new/broken.jpg").write_bytes(b"\xff\xd8\xff 123")
    return tmp_path / "new"


def read_png(path):
    return tf.io.decode_png(path.read_bytes()).numpy()


def segmenter():
    model = randomize(LinearSegmenter(**SIZES, input_shape=(16, 16, 3), classes=3), 2.0)
    next(w for w in model.weights if "moving_variance" in w.path).assign(np.ones(8))
    return model


def test_masks_have_the_size_of_their_images(folder, tmp_path, capsys):
    model = segmenter()
    details = {"class_names": NAMES}
    assert pixels.write_pixels(model, details, [folder], tmp_path / "out") == 1
    for name in ("a.png", "deeper/a.png"):
        image = read_png(folder / name)
        outputs = predict_pixels(model, image, keras_vit.preprocessing_of(model))
        mask = read_png(tmp_path / "out/masks" / name)[..., 0]
        np.testing.assert_array_equal(mask, outputs.argmax(-1))
        assert read_png(tmp_path / "out/overlays" / name).shape == image.shape
    captured = capsys.readouterr()
    largest = np.bincount(mask.ravel()).argmax()
    share = 100 * np.mean(mask == largest)
    assert f"deeper/a.png  {NAMES[largest]} {share:.1f} %" in captured.out
    assert "broken.jpg cannot be read: it is damaged." in captured.err
    # The demo shows the same classes.
    picture, found = demo_pixels.PixelModel(model, details, "m").annotations(
        folder / "deeper/a.png"
    )
    np.testing.assert_array_equal(picture, image)
    for shown, label in found:
        np.testing.assert_array_equal(shown, mask == NAMES.index(label.split()[0]))
    assert sum(shown.sum() for shown, _ in found) == mask.size


def test_depths_are_written(folder, tmp_path):
    sizes = {"features": 8, "level_channels": (4, 4, 4, 4), "levels": (1, 1, 1, 1), **SIZES}
    model = DensePredictionTransformer(**sizes, input_shape=(16, 16, 3), predicts="depth")
    randomize(model, 0.5)
    assert pixels.write_pixels(model, {}, [folder / "a.png"], tmp_path / "out") == 0
    image = read_png(folder / "a.png")
    expected = predict_pixels(model, image, keras_vit.preprocessing_of(model))[..., 0]
    np.testing.assert_array_equal(np.load(tmp_path / "out/depths/a.npy"), expected)
    assert read_png(tmp_path / "out/pictures/a.png").shape == (*image.shape[:2], 1)


def test_pixels_are_read_as_the_export_was_served(tmp_path):
    """An export may differ from its model in the EXIF orientation and the rounding."""
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated by 90 degrees
    Image.fromarray(random_pixels(20, 13, 3)).save(tmp_path / "a.jpg", exif=exif)
    model = segmenter()
    for details, shape in (({}, (20, 13)), ({"exif": True}, (13, 20))):
        pixels.write_pixels(model, details, [tmp_path / "a.jpg"], tmp_path / "out")
        assert read_png(tmp_path / "out/masks/a.png").shape[:2] == shape
        picture, _ = demo_pixels.PixelModel(model, details, "m").annotations(tmp_path / "a.jpg")
        assert picture.shape[:2] == shape


def test_two_images_of_one_name_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="different names.*a twice"):
        pixels.write_pixels(
            segmenter(), {}, [folder / "a.png", folder / "deeper/a.png"], tmp_path / "out"
        )
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
    (tmp_path / "a.png").write_bytes(tf.io.encode_png(values.astype(f"uint{bits}")).numpy())
    assert pixels.write_pixels(model, {}, [tmp_path / "a.png"], tmp_path / "out") == 0
    expected = np.broadcast_to(values[..., :3], (20, 13, 3)) * 255 / white
    # A model of zeros predicts class 0, whose color is black.
    drawn = read_png(tmp_path / "out/overlays/a.png")
    np.testing.assert_allclose(drawn, expected / 2, atol=1)
    picture, _ = demo_pixels.PixelModel(model, {}, "m").annotations(tmp_path / "a.png")
    np.testing.assert_allclose(picture, expected, atol=1)


def test_class_names_and_top_apply_to_masks(folder, run_predict, tmp_path, capsys):
    segmenter().save(tmp_path / "m.keras")
    names = tmp_path / "names.txt"
    flags = (f"--model={tmp_path}/m.keras", f"--output={tmp_path}/out", f"--class_names={names}")
    names.write_text("ant\nbee\ncat\n")
    run_predict(*flags, "--top=1", folder / "a.png")
    assert re.search(r"a.png  (ant|bee|cat) \S+ %\n", capsys.readouterr().out)
    names.write_text("ant\nbee\n")
    with pytest.raises(ValueError, match="must be 3 names.*Received: 2"):
        run_predict(*flags, folder / "a.png")


def test_windows_are_refused_for_classifiers(folder, run_predict, tmp_path):
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3), classes=3)
    model.save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match="--windows is for models that predict pixels"):
        run_predict(f"--model={tmp_path}/m.keras", "--windows", folder / "a.png")
