"""What the page of `keras-vit demo` shows, without the page: predictions, attention, and sentences about files."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import Preprocessing, export, inspection
from keras_vit.commands import demo_model, image_files

SIZES = {"patch_size": 8, "num_layers": 2, "hidden_size": 8, "mlp_dim": 12, "num_heads": 2, "classes": 3}
NAMES = ["cat", "dog", "<b>"]


def _vit(**changes):
    model = keras_vit.VisionTransformer(**{**SIZES, "input_shape": (16, 24, 3), **changes})
    random = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(0.5 * random.standard_normal(weight.shape))
    return model


def _png(*shape, dtype=np.uint8, seed=0):
    image = np.random.default_rng(seed).integers(0, np.iinfo(dtype).max + 1, shape).astype(dtype)
    return tf.io.encode_png(image).numpy()


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, "2 layers of 2 heads, 2 x 3 patches and a class token; color images of 24 x 16 pixels; 3 classes."),
        ({"classifier": "gap", "input_shape": (16, 16, 1), "classes": 1}, "gray images of 16 x 16 pixels; 1 classes."),
        ({"classifier": "map"}, "2 x 3 patches and no class token"),
        ({"resnet_blocks": (1,), "patch_size": 2, "input_shape": (32, 64, 3)}, "4 x 8 patches"),
    ],
    ids=["token", "gap", "map", "hybrid"],
)
def test_predictions_and_attention_are_those_of_the_model(changes, facts):
    model = _vit(**changes)
    demo = demo_model.KerasModel(model, "mine")
    assert facts in demo.facts and not demo.missing
    height, width, channels = model.input_shape[1:]
    inputs = np.random.default_rng(0).uniform(-1, 1, (1, height, width, channels)).astype("float32")
    image = demo_model.DemoImage("a.png", np.zeros((height, width, 3), np.uint8), inputs[0])
    np.testing.assert_allclose(demo.probabilities([image]), tf.nn.softmax(model(inputs)), atol=1e-6)
    rollout, attention = demo.attention(image, patch=(1, 1), layer=1, head=2)
    scores = inspection.attention_scores(model, inputs)
    prefix = scores.shape[-1] - demo.grid[0] * demo.grid[1]
    row = prefix + demo.grid[1] + 1
    np.testing.assert_allclose(attention.ravel(), scores[0, 0, 1, row, prefix:], atol=1e-6)
    np.testing.assert_allclose(rollout.ravel(), inspection.attention_rollout(scores)[0, row, prefix:], atol=1e-6)
    maps = [inspection.attention_maps(model, inputs, method, upsample=False)[0] for method in ("rollout", "mean")]
    np.testing.assert_allclose(demo.attention(image), maps, atol=1e-6)


def test_what_is_shown_is_what_the_model_sees():
    preprocessing = Preprocessing(mean=(10, 20, 30), std=(40, 50, 60), resize="shorter_side")
    reader = image_files.ImageFileReader((16, 24, 3), preprocessing)
    content = _png(16, 24, 3)
    image, picture = reader.read("a.png", content)
    stored = tf.io.decode_png(content).numpy()
    np.testing.assert_array_equal(picture, stored)
    np.testing.assert_allclose(image, (stored - [10, 20, 30.0]) / [40, 50, 60], atol=1e-5)
    with pytest.raises(ValueError, match="^a.png is an image more than 100 times as long as it is wide, which is not"):
        reader.read("a.png", _png(10_000, 10, 3))


def test_probabilities_are_those_that_the_model_was_trained_for():
    model = _vit()
    image = demo_model.DemoImage("a.png", None, np.ones((16, 24, 3), "float32"))
    logits = model(image.inputs[None])
    sigmoid = demo_model.KerasModel(model, "", activation="sigmoid")
    np.testing.assert_allclose(sigmoid.probabilities([image]), keras.activations.sigmoid(logits), atol=1e-6)
    ends_in_softmax = _vit(classifier_activation="softmax")
    probabilities = demo_model.KerasModel(ends_in_softmax, "").probabilities([image])
    np.testing.assert_allclose(probabilities, ends_in_softmax(image.inputs[None]), atol=1e-6)  # and not twice


def test_a_model_without_attention_says_so():
    resnet = keras_vit.BiTResNet(depth=26, input_shape=(32, 32, 3), classes=3)
    demo = demo_model.KerasModel(resnet, "resnet", NAMES)
    assert not demo.layers and "no attention to show" in demo.missing
    image = demo_model.DemoImage("a.png", None, np.ones((32, 32, 3), "float32"))
    np.testing.assert_allclose(demo.probabilities([image]).sum(), 1, atol=1e-5)
    with pytest.raises(ValueError, match="There must be a name for each of 3 classes. Received: 2 names"):
        demo_model.KerasModel(resnet, "resnet", NAMES[:2])
    with pytest.raises(ValueError, match="from images .* to logits or probabilities"):
        demo_model.KerasModel(keras.Model(resnet.input, resnet.layers[1].output), "features")


GIF = [b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff"]
GIF += [b",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00"] * 2 + [b";"]


def test_each_file_that_is_refused_or_loses_something_gets_a_sentence(tmp_path, monkeypatch):
    png = _png(4, 6, 3)
    bomb = png[:16] + (10_000).to_bytes(4, "big") * 2 + png[24:]
    contents = {
        "ok.png": png,
        "long.png": _png(10_000, 10, 3),
        "point.png": _png(1, 1, 1),
        "deep.png": _png(4, 6, 3, dtype=np.uint16),
        "glass.png": _png(4, 6, 4),
        "moving.gif": b"".join(GIF),
        "print.jpg": _cmyk_jpeg(),
        "letter.png": b"Dear Sir",
        "empty.jpg": b"",
        "broken.png": png[:40],
        "bomb.png": bomb,
        "<b>.png": b"Dear Sir",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    demo = demo_model.KerasModel(_vit(), "mine")
    images, probabilities, sentences = demo_model.read_files(demo, [tmp_path / name for name in contents])
    assert [image.name for image in images] == list(contents)[:7] and probabilities.shape == (7, 3)
    assert sentences == [
        "deep.png has 16 bits a channel; the upper 8 are used.",
        "glass.png has transparency, which is ignored.",
        "moving.gif is an animation; its first picture is used.",
        "print.jpg has the colors of print (CMYK), which are converted.",
        "letter.png is not an image that can be read: JPEG, PNG, GIF, BMP or WebP.",
        "empty.jpg is empty.",
        "broken.png is damaged or cut short.",
        "bomb.png has 10,000 x 10,000 pixels; at most 50 million can be read.",
        "<b>.png is not an image that can be read: JPEG, PNG, GIF, BMP or WebP.",
    ]
    monkeypatch.setattr(demo_model, "MAX_IMAGES", 3)
    images, _, sentences = demo_model.read_files(demo, [tmp_path / "ok.png"] * 200)
    assert len(images) == 3 and sentences == ["These are 200 files; the first 3 are shown."]
    assert demo_model.read_files(demo, [])[0] == []


def _cmyk_jpeg():
    from PIL import Image

    file = io.BytesIO()
    Image.new("CMYK", (6, 4), (10, 20, 30, 40)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    model = _vit(num_layers=1)
    model.save(folder / "model.keras")
    signatures = ("serving_default", "attention")
    export.saved_model(model, folder / "v", class_names=NAMES, activation="sigmoid", signatures=signatures)
    return model, folder


def test_a_keras_file_and_an_export_are_read_whole(exported):
    model, folder = exported
    ours = demo_model.load(str(folder / "v" / "1"))
    assert ours.class_names == NAMES and ours.layers == 1
    image = demo_model.DemoImage("a.png", None, np.ones((16, 24, 3), "float32"))
    logits = model(image.inputs[None])
    np.testing.assert_allclose(ours.probabilities([image]), keras.activations.sigmoid(logits), atol=1e-6)
    (folder / "names.txt").write_text("\n".join(NAMES))
    assert demo_model.load(str(folder / "model.keras"), class_names=str(folder / "names.txt")).class_names == NAMES
    with pytest.raises(ValueError, match="There is no such file. Received: class_names="):
        demo_model.load(str(folder / "model.keras"), class_names="nowhere")
    for nowhere in ("nowhere", "nowhere.keras"):
        with pytest.raises(ValueError, match="Received: .*nowhere"):
            demo_model.load(nowhere)


def test_pictures_show_which_patch_is_meant():
    pixels = np.full((16, 24, 3), 255, np.uint8)
    attention = np.array([[0.1, 0.2, 0.0], [0.0, 0.4, 0.0]])
    picture = demo_model.attention_picture(pixels, attention, patch=(1, 2), opacity=1.0)
    factor = round(448 / 24)
    assert picture.shape == (16 * factor, 24 * factor, 3)
    center = lambda row, column: picture[(8 * row + 4) * factor, (8 * column + 4) * factor]  # noqa: E731
    np.testing.assert_allclose(center(1, 1), [253, 231, 36], atol=1)  # viridis' last color, of the largest
    np.testing.assert_allclose(center(0, 2), [68, 1, 84], atol=1)  # and its first one, of 0
    assert not np.any(picture[8 * factor, 16 * factor]) and np.all(picture[8 * factor + 3, 16 * factor + 3] == 255)
    np.testing.assert_array_equal(demo_model.attention_picture(pixels, attention, opacity=0.0), 255)
    size = picture.shape[:2]
    assert demo_model.patch_at(0, 0, size, (2, 3)) == (0, 0)
    assert demo_model.patch_at(size[1] // 3, size[0] // 2, size, (2, 3)) == (1, 1)
    assert demo_model.patch_at(size[1] + 5, -3, size, (2, 3)) == (0, 2)
    one = demo_model.attention_picture(np.zeros((1, 1, 3), np.uint8), np.ones((1, 1)), patch=(0, 0))
    assert one.shape == (448, 448, 3)


def test_names_of_files_are_text_and_no_html():
    assert "<b>" not in demo_model.messages(["<b>.png is empty."]) + demo_model.heading("<b>", "<b>", "")
    assert demo_model.messages([]) == ""
