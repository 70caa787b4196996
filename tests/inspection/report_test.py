"""Tests of the figures and the HTML page of the report, for models with rectangular images."""

import keras
import numpy as np
import pytest

pytest.importorskip("matplotlib")

import keras_vit
from keras_vit.inspection import plots
from keras_vit.inspection.report import write_report
from keras_vit.plots import overlaid

from ..shared import THREE_LAYERS, random_images, randomize_head

MODEL = {**THREE_LAYERS, "num_layers": 2}
FIGURES = {
    "attention.png",
    "heads.png",
    "attention_distance.png",
    "positions.png",
    "filters.png",
    "patches.png",
}


@pytest.fixture
def plotted(monkeypatch):
    """Returns a list that collects the pictures and the maps of attention plots."""
    plotted = []

    def plot(path, pictures, maps, captions):
        plotted.append((pictures, maps))
        open(path, "wb").close()

    monkeypatch.setattr(plots, "attention", plot)
    return plotted


def test_report_contains_all_figures(tmp_path):
    vit = keras_vit.VisionTransformer(**MODEL)
    model = keras.Sequential([keras.Input((24, 16, 3)), vit])
    lines = []
    page = write_report(
        model,
        random_images((3, 24, 16, 3)),
        tmp_path / "out",
        "a <model>",
        {"runs/$_$x": vit},  # must not be rendered as math
        shown=2,
        write=lines.append,
        captions=["cat 9 %\na$b$.jpg", "dog"],
    )
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {*FIGURES, "index.html"}
    text = page.read_text(encoding="utf-8")
    for figure in FIGURES:
        assert f'src="{figure}"' in text
    assert "a &lt;model&gt;" in text
    assert "<model>" not in text
    assert any("untrained head" in line for line in lines)  # the head of a new model is zero


def test_pictures_show_the_pixels_of_a_wrapped_model(plotted, tmp_path):
    """The outer model takes pixel values, which it scales for the inner one."""
    pixels = keras.Input((24, 16, 3))
    unit = keras_vit.Preprocessing(mean=(0, 0, 0), std=(1, 1, 1))
    x = keras_vit.layers.InputPreprocessing(unit)(pixels)
    x = keras.layers.Rescaling(1 / 127.5, -1)(x)
    model = keras.Model(pixels, keras_vit.VisionTransformer(**MODEL)(x))
    images = 127.5 * (1 + random_images((2, 24, 16, 3)))
    write_report(model, images, tmp_path)
    ((pictures, _),) = plotted
    np.testing.assert_allclose(pictures, images / 255, atol=1e-6)


def test_report_omits_unavailable_figures(plotted, tmp_path):
    sizes = {**MODEL, "patch_size": 2}
    hybrid = keras_vit.VisionTransformer(**sizes, classifier="gap", resnet_blocks=(1,))
    randomize_head(hybrid)
    pixels = keras.Input(hybrid.image_shape)
    logits = hybrid(pixels)
    # Relevance requires one output, and filters require a model that is not a hybrid.
    two_outputs = keras.Model(pixels, [logits, keras.layers.Dense(2)(logits)])
    write_report(two_outputs, np.zeros((1, 24, 16, 3)), tmp_path)
    ((_, maps),) = plotted
    assert list(maps) == ["rollout", "rollout without residual", "last layer"]
    assert not (tmp_path / "filters.png").exists()


def test_attention_plot_overlays_the_share_of_the_maximum(monkeypatch, tmp_path):
    overlays = []

    def record_overlay(image, values):
        overlays.append(overlaid(image, values))
        return overlays[-1]

    monkeypatch.setattr(plots, "overlaid", record_overlay)
    white = np.ones((1, 1, 2, 3))
    maps = np.array([[[0.0, 5.0]]])
    plots.attention(tmp_path / "picture.png", white, {"map": maps})
    # White is blended with the first and the last color of viridis.
    viridis = np.array([[[68, 1, 84], [253, 231, 37]]])
    np.testing.assert_allclose(overlays, [0.5 + 0.5 * viridis / 255], atol=0.01)


@pytest.mark.parametrize(
    ("dtype", "arguments", "message"),
    [
        ("uint8", {}, "`images` must be floats"),
        ("float32", {"shown": -1}, "`shown` must be"),
        ("float32", {"title": "a", "others": {"a": None}}, "title of `model`"),
    ],
)
def test_invalid_arguments_write_no_report(dtype, arguments, message, tmp_path):
    model = keras_vit.VisionTransformer(**MODEL)
    images = np.zeros((1, 24, 16, 3), dtype)
    with pytest.raises(ValueError, match=message):
        write_report(model, images, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_naflex_model_writes_no_report(tmp_path):
    model = keras_vit.NaFlexVisionTransformer(**{**MODEL, "classifier": "map", "max_patches": 8})
    batch = keras_vit.preprocess_input([np.zeros((24, 16, 3), "uint8")], model)
    with pytest.raises(ValueError, match="its own patch grid"):
        write_report(model, batch, tmp_path / "out")
    assert not (tmp_path / "out").exists()
