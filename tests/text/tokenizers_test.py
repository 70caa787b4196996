"""Tests of tokenizers against those of transformers, and of templates."""

import json
import shutil

import numpy as np
import pytest

from keras_vit.text import CLIP_TEMPLATES, Tokenizer, fill

from ..shared import GOLDEN

FOLDER = GOLDEN / "text" / "tokenizers"
EXPECTED = json.loads((FOLDER / "ids.json").read_text())
FILES = {"CLIP": "clip.json", "SigLIP 2": "siglip2.json", "SigLIP": "siglip.model"}
LIBRARIES = {".json": "tokenizers", ".model": "sentencepiece"}
families = pytest.mark.parametrize("family", FILES)


def tokenizer(family, **options):
    path = FOLDER / FILES[family]
    pytest.importorskip(LIBRARIES[path.suffix])
    return Tokenizer(path, **{"length": 16, **options})


@families
def test_ids_match_transformers(family):
    result = tokenizer(family, vocabulary_size=EXPECTED["sizes"][family])
    ids = result(EXPECTED["texts"])
    assert result.family == family and ids.dtype == np.int32
    np.testing.assert_array_equal(ids, EXPECTED[family])
    assert ids[-1, -1] == result.end_id  # the longest text is cut before the end token


@families
def test_case_does_not_change_ids(family):
    result = tokenizer(family)
    np.testing.assert_array_equal(result(["A Photo of a CAT"]), result(["a photo of a cat"]))


def test_only_siglip_1_removes_punctuation():
    for family in FILES:
        result = tokenizer(family)
        same = (result(["a t-shirt_red!"]) == result(["a tshirt red"])).all()
        assert same == (family == "SigLIP")


@families
def test_other_vocabulary_sizes_are_refused(family):
    with pytest.raises(ValueError, match="but the model embeds 1000"):
        tokenizer(family, vocabulary_size=1000)


def test_folders_and_bad_files(tmp_path):
    result = tokenizer("CLIP")
    with pytest.raises(ValueError, match="No tokenizer was found"):
        Tokenizer(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"")
    shutil.copy(FOLDER / "clip.json", tmp_path / "tokenizer.json")
    np.testing.assert_array_equal(Tokenizer(tmp_path, 16)(["a cat"]), result(["a cat"]))
    np.testing.assert_array_equal(result(iter(["a cat"])), result(["a cat"]))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        Tokenizer(tmp_path / "bad.json")
    text = (FOLDER / "clip.json").read_text()
    (tmp_path / "other.json").write_text(text.replace("<|endoftext|>", "[SEP]"))
    with pytest.raises(ValueError, match="an end token of CLIP or SigLIP"):
        Tokenizer(tmp_path / "other.json")
    with pytest.raises(ValueError, match="a list of strings"):
        result("a cat")


def test_missing_library_is_named(monkeypatch, tmp_path):
    shutil.copy(FOLDER / "clip.json", tmp_path / "another.json")
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"keras_vit\[text\]"):
        Tokenizer(tmp_path / "another.json")


def test_templates():
    assert len(set(CLIP_TEMPLATES)) == 80
    texts = fill(CLIP_TEMPLATES, "{cat}")
    assert texts[0] == "a bad photo of a {cat}." and all("{cat}" in text for text in texts)
    with pytest.raises(ValueError, match="must contain {} once"):
        fill(["a photo"], "cat")
