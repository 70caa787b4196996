"""Tests of `keras-vit search`."""

import numpy as np
import pytest

import keras_vit
from keras_vit.commands import search

from ..evaluation.towers import make_towers, write_tokenizer
from ..shared import randomize
from .conftest import random_pixels, write_image


def write_photo(path, seed):
    write_image(path, random_pixels(12, 10, 3, seed=seed))


@pytest.fixture
def photos(tmp_path):
    pytest.importorskip("tokenizers")
    folder = tmp_path / "photos"
    for i in range(3):
        write_photo(folder / f"{i}.png", seed=i)
    return folder


@pytest.fixture
def searched(photos, tmp_path, parse, monkeypatch, capsys):
    """Returns a function that searches with towers of random weights, and returns the towers and
    the printed lines."""
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")

    def run(*texts, seed=0, output="found.png"):
        towers = randomize(make_towers(tokenizer), seed=seed)
        monkeypatch.setattr(keras_vit, "from_pretrained", lambda source, tower: towers)
        flags = ("--weights=pair", f"--data={photos}", f"--output={tmp_path / output}", "--top=2")
        search.main(*parse(search, *flags, "--batch_size=2", *texts))
        return towers, capsys.readouterr().out.splitlines()

    return run


def test_best_files_come_first(searched, photos, tmp_path):
    texts = ["a white image", "black"]
    towers, lines = searched(*texts)
    reader = search.reader_of(towers.image, {})
    files = sorted(photos.iterdir())
    pixels = np.stack([reader.read(path.name, path.read_bytes())[0] for path in files])
    ids = keras_vit.text.Tokenizer(tmp_path / "tokenizer.json", 6)(texts)
    cosines = np.asarray(towers.encode_text(ids)) @ np.asarray(towers.encode_image(pixels)).T
    expected = ["3 images, 3 of them new"]
    for text, row in zip(texts, cosines):
        expected.append(f"{text}:")
        expected += [f"  {row[i]:.3f}  {files[i]}" for i in np.argsort(-row)[:2]]
    assert lines == [*expected, f"drew {tmp_path / 'found.png'}"]
    assert (tmp_path / "found.png").read_bytes()[:4] == b"\x89PNG"


def test_only_new_and_changed_files_are_embedded(searched, photos):
    _, first = searched("white")
    assert searched("white")[1] == ["3 images, 0 of them new", *first[1:]]
    write_photo(photos / "0.png", seed=5)
    write_photo(photos / "new.png", seed=6)
    assert searched("white")[1][0] == "4 images, 2 of them new"


def test_another_model_embeds_all_files(searched):
    for seed in (0, 1):
        assert searched("white", seed=seed)[1][0] == "3 images, 3 of them new"


@pytest.mark.parametrize("length", [0, 500], ids=["empty", "truncated"])
def test_damaged_cache_is_replaced(length, searched, tmp_path):
    _, lines = searched("white")
    cache = tmp_path / "found.png.npz"
    content = cache.read_bytes()
    cache.write_bytes(content[:length])
    assert searched("white")[1] == lines
    assert cache.read_bytes() == content


def test_links_to_missing_files_are_skipped(searched, photos, capsys):
    (photos / "missing.png").symlink_to("nowhere.png")
    with pytest.raises(SystemExit, match="1"):
        searched("white")
    captured = capsys.readouterr()
    assert captured.out.startswith("3 images, 3 of them new\n")
    assert "1 of 4 files cannot be read" in captured.err


def test_output_must_be_a_picture(searched):
    with pytest.raises(ValueError, match="such as .png or .pdf.*found.txt"):
        searched("white", output="found.txt")


def test_neither_the_drawn_picture_nor_a_damaged_file_is_counted(searched, photos, capsys):
    (photos / "damaged.png").write_bytes(b"damaged")
    for new in (3, 0):
        with pytest.raises(SystemExit):
            searched("white", output="photos/found.png")
        assert capsys.readouterr().out.startswith(f"3 images, {new} of them new\n")
