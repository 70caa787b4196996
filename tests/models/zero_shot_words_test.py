"""Tests of zero-shot classifiers from words."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models.any_model import logits_activation_of
from keras_vit.models.zero_shot import class_names_of

from ..shared import GOLDEN, SIZES, random_images, to_numpy

FILES = GOLDEN / "text" / "tokenizers"
VOCABULARIES = json.loads((FILES / "ids.json").read_text())["sizes"]
SIZE = {name: size for name, size in SIZES.items() if name != "patch_size"}
IMAGE = {"patch_size": 8, "input_shape": (16, 24, 3), "classifier": "map", "include_top": False}
TEMPLATES = ("a photo of a {}.", "the {}")


def towers(bias=None, **text):
    pytest.importorskip("tokenizers")
    keras.utils.set_random_seed(0)
    text = {
        "vocabulary_size": VOCABULARIES["CLIP"],
        "length": 16,
        "causal": True,
        "pool": "largest",
        "tokenizer": str(FILES / "clip.json"),
        **text,
    }
    model = keras_vit.TwoTowers(
        keras_vit.VisionTransformer(**IMAGE, **SIZE),
        keras_vit.TextTransformer(**SIZE, embedding_size=8, **text),
        bias=bias,
    )
    for weight in model.text.weights:  # so that texts differ clearly
        weight.assign(np.random.default_rng(len(weight.path)).normal(size=weight.shape))
    return model


@pytest.mark.parametrize("bias", [None, -1.5])
def test_class_embeddings_average_normalized_templates(bias):
    model = towers(bias)
    classifier = keras_vit.zero_shot(model, ["cat", "dog"], templates=TEMPLATES)
    images = random_images((3, 16, 24, 3))
    texts = [template.format(name) for name in ("cat", "dog") for template in TEMPLATES]
    ids = keras_vit.text.Tokenizer(FILES / "clip.json", 16)(texts)
    embedded = to_numpy(model.encode_text(ids)).reshape(2, 2, -1).mean(1)
    embedded /= np.linalg.norm(embedded, axis=1, keepdims=True)
    seen = to_numpy(model.encode_image(images))
    expected = 10 * seen @ embedded.T + (bias or 0)
    np.testing.assert_allclose(to_numpy(classifier(images)), expected, atol=1e-5)
    assert logits_activation_of(classifier) == ("softmax" if bias is None else "sigmoid")
    assert class_names_of(classifier) == ["cat", "dog"]


def test_one_template_gives_the_logits_of_both_towers(tmp_path):
    model = towers(bias=-1.5)
    images = random_images((3, 16, 24, 3))
    names = [f"thing {i}" for i in range(70)]  # more than one batch
    classifier = keras_vit.zero_shot(model, names, templates=["a {}"])
    ids = keras_vit.text.Tokenizer(FILES / "clip.json", 16)([f"a {name}" for name in names])
    expected = to_numpy(model([images, ids]))
    np.testing.assert_allclose(to_numpy(classifier(images)), expected, atol=2e-5)
    model.save(tmp_path / "towers.keras")
    again = keras_vit.models.load_keras_file(tmp_path / "towers.keras")
    again = keras_vit.zero_shot(again, names, templates=["a {}"])
    np.testing.assert_allclose(to_numpy(again(images)), expected, atol=2e-5)


@pytest.mark.one_backend
def test_a_tokenizer_may_be_given():
    tokenizer = keras_vit.text.Tokenizer(FILES / "clip.json", 16)
    classifier = keras_vit.zero_shot(towers(tokenizer=""), ["cat"], tokenizer=tokenizer)
    assert class_names_of(classifier) == ["cat"]


@pytest.mark.one_backend
def test_models_without_a_matching_tokenizer_are_refused():
    with pytest.raises(ValueError, match="both towers.*vision_transformer"):
        keras_vit.zero_shot(towers().image, ["cat"])
    with pytest.raises(ValueError, match="has no tokenizer"):
        keras_vit.zero_shot(towers(tokenizer=""), ["cat"])
    with pytest.raises(ValueError, match="but the model embeds 999"):
        keras_vit.zero_shot(towers(vocabulary_size=999), ["cat"])


@pytest.mark.one_backend
@pytest.mark.parametrize("names", [[], ["cat", "cat"], ["cat", " "], [3]])
def test_class_names_must_be_different_strings(names):
    with pytest.raises(ValueError, match="must be different strings"):
        keras_vit.zero_shot(towers(), names)
