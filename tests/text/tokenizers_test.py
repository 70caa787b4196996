"""Tests of tokenizers, which give the token ids of transformers, and of prompt templates."""

import json
import shutil
import sys

import numpy as np
import pytest

from keras_vit.text import CLIP_TEMPLATES, Tokenizer, fill

from ..shared import GOLDEN

FOLDER = GOLDEN / "text" / "tokenizers"
# Texts, their token ids and the sizes of the vocabularies, computed by transformers.
EXPECTED = json.loads((FOLDER / "ids.json").read_text())
FILES = {"CLIP": "clip.json", "SigLIP 2": "siglip2.json", "SigLIP": "siglip.model"}
LIBRARIES = {".json": "tokenizers", ".model": "sentencepiece"}


def load_tokenizer(family, **options):
    path = FOLDER / FILES[family]
    pytest.importorskip(LIBRARIES[path.suffix])
    return Tokenizer(path, length=16, **options)


@pytest.mark.parametrize("family", FILES)
def test_ids_match_transformers(family):
    tokenizer = load_tokenizer(family, vocabulary_size=EXPECTED["sizes"][family])
    ids = tokenizer(EXPECTED["texts"])
    assert tokenizer.family == family and ids.dtype == np.int32
    np.testing.assert_array_equal(ids, EXPECTED[family])
    # The last text is too long. It is cut, but keeps an end token.
    assert ids[-1, -1] == tokenizer.end_id


def test_tokenizer_is_found_in_a_folder(tmp_path):
    expected = load_tokenizer("CLIP")(["a cat"])
    with pytest.raises(ValueError, match="No tokenizer was found"):
        Tokenizer(tmp_path)
    # The other file of a tokenizer is ignored.
    (tmp_path / "spiece.model").write_bytes(b"")
    shutil.copy(FOLDER / "clip.json", tmp_path / "tokenizer.json")
    np.testing.assert_array_equal(Tokenizer(tmp_path, 16)(["a cat"]), expected)


def test_texts_may_be_an_iterator_of_strings_but_no_string():
    tokenizer = load_tokenizer("CLIP")
    np.testing.assert_array_equal(tokenizer(iter(["a cat"])), tokenizer(["a cat"]))
    for wrong in ("a cat", ["a cat", None]):
        with pytest.raises(ValueError, match="a list of strings"):
            tokenizer(wrong)


def test_rejects_bad_files(tmp_path):
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        Tokenizer(path)
    clip = (FOLDER / "clip.json").read_text()
    path.write_text(clip.replace("<|endoftext|>", "[SEP]"))
    with pytest.raises(ValueError, match="an end token of CLIP or SigLIP"):
        Tokenizer(path)


def test_missing_library_is_named(monkeypatch, tmp_path):
    shutil.copy(FOLDER / "clip.json", tmp_path / "another.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"keras_vit\[text\]"):
        Tokenizer(tmp_path / "another.json")


def test_templates_are_filled_with_a_class():
    assert len(set(CLIP_TEMPLATES)) == 80
    # A class may contain braces.
    texts = fill(CLIP_TEMPLATES, "{cat}")
    assert texts[0] == "a bad photo of a {cat}." and all("{cat}" in text for text in texts)
    with pytest.raises(ValueError, match="must contain {} once"):
        fill(["a photo"], "cat")
