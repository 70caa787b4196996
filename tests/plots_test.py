"""Tests of `to_pictures`, which converts image batches for plots, and of `Page`, which writes HTML
pages."""

import numpy as np

from keras_vit import files, naflex, plots
from keras_vit.preprocessing import Preprocessing


def test_to_pictures_converts_naflex_batches():
    # 2 x 4 patches of 2 x 2 pixels.
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 3)).astype("float32")
    preprocessing = Preprocessing(resize="naflex")
    batch = naflex.preprocess([pixels, pixels[:, :4]], preprocessing.mean, preprocessing.std, 2, 8)
    pictures = plots.to_pictures(batch, preprocessing)
    assert len(pictures) == 2
    np.testing.assert_allclose(pictures[0, :4, :8], pixels / 255, atol=1e-5)


def test_to_pictures_inverts_normalization():
    white = 2**16 - 1
    pixels = np.random.default_rng(0).uniform(0, white, (2, 4, 5, 3))
    mean = (30_000, 31_000, 32_000)
    std = (15_000, 16_000, 17_000)
    pictures = plots.to_pictures((pixels - mean) / std, Preprocessing(mean, std, bit_depth=16))
    np.testing.assert_allclose(pictures, pixels / white, atol=1e-6)


def test_to_pictures_repeats_gray_channel():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 1)).astype("float32")
    gray = plots.to_pictures(pixels / 127.5 - 1)
    np.testing.assert_allclose(gray, np.repeat(pixels, 3, axis=-1) / 255, atol=1e-6)


def test_wide_figure_scrolls_on_narrow_screen(tmp_path):
    page = plots.Page(tmp_path, "model", write=lambda line: None)
    page.draw("worst.png", "Worst", "", lambda path: open(path, "w").close(), columns=8)
    text = page.save("facts").read_text()
    assert 'style="min-width: 768px"' in text and "overflow-x: auto" in text


def test_page_in_a_remote_folder():
    """TensorFlow's in-memory file system stands in for gs://."""
    page = plots.Page("ram://plots/page", "title", write=lambda line: None)
    page.draw("one.png", "One", "text", lambda path: open(path, "wb").close())
    assert 'src="one.png"' in files.read_text(page.save("facts"))
    assert files.list_dir("ram://plots/page") == ["index.html", "one.png"]
