"""Tests of the evaluators `retrieval` and `zero_shot`."""

import types

import numpy as np
import pytest

import keras_vit
from keras_vit import data, evaluation
from keras_vit.evaluation import image_text

from ..shared import randomize
from .towers import make_towers, write_tokenizer


def recalls_of(arrays, names, monkeypatch):
    """Returns the recalls for embeddings of examples whose images have these names."""
    monkeypatch.setattr(image_text, "collect", lambda *_: arrays)
    monkeypatch.setattr(image_text, "_ROWS", 2)  # so that the queries need several steps
    inputs = types.SimpleNamespace(test=types.SimpleNamespace(name_of=names.__getitem__))
    return image_text.retrieval(None, inputs)


def test_recall_of_images_with_several_texts(monkeypatch):
    # Images a and b have two texts each, and image c has one. The last example does not count.
    names = ["b", "a", "b", "a", "c", "d"]
    images = np.eye(3)[[1, 0, 1, 0, 2, 0]]
    texts = np.array([[8.0, 2, 0], [9, 1, 0], [0, 1, 0], [1, 9, 0], [1, 0, 0], [0, 0, 1]])
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    weights = np.array([1, 1, 1, 1, 1, 0])
    arrays = {"images": images, "texts": texts, "weights": weights}
    recalls = recalls_of(arrays, names, monkeypatch)
    assert list(recalls) == list(image_text.RETRIEVAL)
    assert recalls["text_to_image_recall_at_1"] == pytest.approx(2 / 5)
    # Image a ranks the text of c first, then its own. Image b ranks its own text first, and all
    # five texts are equally similar to image c.
    assert recalls["image_to_text_recall_at_1"] == pytest.approx((0 + 1 + 1 / 5) / 3)
    assert recalls["image_to_text_recall_at_5"] == recalls["text_to_image_recall_at_5"] == 1


def test_recall_of_equal_embeddings_is_that_of_chance(monkeypatch):
    pairs = np.eye(2)[[0, 0, 1, 1]]
    arrays = {"images": pairs, "texts": pairs, "weights": np.ones(4)}
    recalls = recalls_of(arrays, "abcd", monkeypatch)
    assert recalls["text_to_image_recall_at_1"] == recalls["image_to_text_recall_at_1"] == 0.5


@pytest.mark.parametrize("name", ["retrieval", "zero_shot"])
def test_rejects_models_without_two_towers(name):
    inputs = types.SimpleNamespace(
        target="classes", test=types.SimpleNamespace(class_names=("a", "b"))
    )
    with pytest.raises(ValueError, match="an image and a text tower"):
        evaluation.get([name])[name].check(types.SimpleNamespace(name="m"), inputs)


def test_zero_shot_classifies_by_the_names_of_the_classes(tmp_path):
    pytest.importorskip("tokenizers")
    towers = randomize(make_towers(write_tokenizer(tmp_path / "tokenizer.json")))
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3)).astype("uint8")
    classifier = keras_vit.zero_shot(towers, ["black", "a photo"], keras_vit.text.CLIP_TEMPLATES)
    logits = np.asarray(classifier(keras_vit.preprocess_input(pixels, towers)))
    labels = logits.argmax(1)
    # Three of the twelve answers are wrong.
    labels[:3] = 1 - labels[:3]
    source = data.arrays(pixels, labels, ["black", "a_photo"])
    inputs = data.InputPipeline(source, source, {"image_size": 8}, 5, 0, 0.01)
    assert 0 < labels.mean() < 1
    assert evaluation.evaluate(towers, ["zero_shot"], inputs)["zero_shot/accuracy"] == 0.75
