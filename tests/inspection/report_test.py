"""Tests of the figures and the HTML page of the report, for models with rectangular images."""

import keras
import numpy as np
import pytest

pytest.importorskip("matplotlib")

import keras_vit
from keras_vit.inspection import plots
from keras_vit.inspection.report import write_report

from ..shared import THREE_LAYERS, randomize_head

MODEL = {**THREE_LAYERS, "num_layers": 2}


def test_report_contains_all_figures(tmp_path):
    model = keras_vit.VisionTransformer(**MODEL)
    wrapped = keras.Sequential([keras.Input((24, 16, 3)), model])
    lines = []
    images = np.random.default_rng(0).uniform(-1, 1, (3, 24, 16, 3))
    others = {"runs/$_$x": model}  # must not be rendered as math
    page = write_report(
        wrapped,
        images,
        tmp_path / "out",
        "a <model>",
        others,
        shown=2,
        write=lines.append,
        captions=["cat 9 %\na$b$.jpg", "dog"],
    )
    text = page.read_text(encoding="utf-8")
    pictures = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert pictures == {
        "attention.png",
        "heads.png",
        "attention_distance.png",
        "positions.png",
        "filters.png",
        "patches.png",
    }
    assert all(f'src="{name}"' in text for name in pictures)
    assert "a &lt;model&gt;" in text and "<model>" not in text
    assert len(list((tmp_path / "out").iterdir())) == 7
    assert any("untrained head" in line for line in lines)  # the head of a new model is zero


def test_pictures_show_the_pixels_of_a_wrapped_model(tmp_path, monkeypatch):
    """The outer model takes pixel values, which it scales for the inner one."""
    vit = keras_vit.VisionTransformer(**MODEL)
    pixels = keras.Input((24, 16, 3))
    x = keras_vit.layers.InputPreprocessing(keras_vit.Preprocessing(mean=(0, 0, 0), std=(1, 1, 1)))(
        pixels
    )
    model = keras.Model(pixels, vit(keras.layers.Rescaling(1 / 127.5, -1)(x)))
    drawn = []
    monkeypatch.setattr(
        plots,
        "attention",
        lambda path, pictures, *_: drawn.append(pictures) or open(path, "wb").close(),
    )
    images = np.random.default_rng(0).integers(0, 256, (2, 24, 16, 3)).astype("float32")
    write_report(model, images, tmp_path, write=lambda line: None)
    np.testing.assert_allclose(drawn[0], images / 255, atol=1e-6)


def test_report_omits_unavailable_figures(tmp_path, monkeypatch):
    model = keras_vit.VisionTransformer(
        **MODEL | {"patch_size": 2, "classifier": "gap"}, resnet_blocks=(1,)
    )
    randomize_head(model)
    pixels = keras.Input(model.image_shape)
    logits = model(pixels)
    two = keras.Model(pixels, [logits, keras.layers.Dense(2)(logits)])
    maps = []
    draw = plots.attention
    monkeypatch.setattr(
        plots, "attention", lambda *arguments: (draw(*arguments), maps.extend(arguments[2]))
    )
    write_report(two, np.zeros((1, 24, 16, 3)), tmp_path, write=lambda line: None)
    assert maps == ["rollout", "rollout without residual", "last layer"]
    assert (
        not (tmp_path / "filters.png").exists()
        and "filters.png" not in (tmp_path / "index.html").read_text()
    )


def test_attention_plot_overlays_the_map(tmp_path):
    from matplotlib.image import imread

    images = np.ones((1, 8, 12, 3))
    maps = np.zeros((1, 8, 12))
    maps[0, :, 6:] = 1
    plots.attention(tmp_path / "picture.png", images, {"map": maps})
    picture = imread(tmp_path / "picture.png")
    height, width = picture.shape[:2]
    # The overlay blends white with the first viridis color in the left half, and with the last one
    # in the right half.
    row = picture[height // 2, width // 2 : width, :3]
    for color in ([68, 1, 84], [253, 231, 37]):
        blend = 0.5 + 0.5 * np.array(color) / 255
        assert np.count_nonzero(np.abs(row - blend).max(-1) < 0.01) > 0.2 * len(row)


def test_bad_requests_write_no_report(tmp_path):
    model = keras_vit.VisionTransformer(**MODEL)
    for match, images in (
        ("at least one image", np.zeros((0, 24, 16, 3))),
        ("`images` must have shape", np.zeros((1, 16, 16, 3))),
    ):
        with pytest.raises(ValueError, match=match):
            write_report(model, images, tmp_path / "out")
    naflex = keras_vit.NaFlexVisionTransformer(**{**MODEL, "classifier": "map", "max_patches": 8})
    batch = keras_vit.preprocess_input([np.zeros((24, 16, 3), "uint8")], naflex)
    with pytest.raises(ValueError, match="its own patch grid"):
        write_report(naflex, batch, tmp_path / "out")
    assert not (tmp_path / "out").exists()
