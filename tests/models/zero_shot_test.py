"""Tests of zero-shot classifiers against the two-tower models of transformers."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models.any_model import logits_activation_of, set_logits_activation

from ..shared import FAMILY_FILES, copy_model_folder, read_arrays, to_numpy

CLASS_NAMES = ("cat", "dog", "a tree", "Ünï")


@pytest.fixture
def tower(tmp_path):
    """Returns a function that builds the image tower of a golden file."""
    return lambda case, **arguments: keras_vit.from_pretrained(
        copy_model_folder(case, tmp_path / case), **arguments
    )


def zero_shot_arrays(case):
    return read_arrays(FAMILY_FILES / f"{case}_zeroshot.npz")


@pytest.mark.parametrize(("case", "activation"), [("siglip", "sigmoid"), ("clip", "softmax")])
def test_logits_and_probabilities_match_transformers(case, activation, tower, tmp_path):
    source = FAMILY_FILES / f"{case}_zeroshot.npz"
    expected = zero_shot_arrays(case)
    model = keras_vit.zero_shot(tower(case), source)
    logits = to_numpy(model(expected["images"]))
    np.testing.assert_allclose(logits, expected["logits"], atol=2e-6)
    probabilities = getattr(keras.ops, activation)(logits)
    np.testing.assert_allclose(probabilities, expected["probabilities"], atol=1e-6)

    model.save(tmp_path / "classifier.keras")
    again = keras_vit.models.load_keras_file(tmp_path / "classifier.keras")
    np.testing.assert_array_equal(to_numpy(again(expected["images"])), logits)
    assert again.layers[-1].class_names == list(CLASS_NAMES)
    assert logits_activation_of(again) == activation
    assert not again.layers[-1].trainable_variables


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": np.ones((4, 8))}, "as wide as"),
        ({"embeddings": np.ones((3, 20))}, "`names` must be K strings"),
        ({"embeddings": np.zeros((4, 20))}, "none may be all zeros"),
        ({"scale": np.nan}, "`scale` must be above 0"),
        ({"scale": None}, "without scale"),
        ({"scale": np.ones(4)}, "size 1"),
        ({"names": np.array([1, 2, 3, 4])}, "`names` must be K strings"),
        ({"names": np.array(["a", None, "b", "c"], object)}, "must be an .npz file"),
    ],
)
def test_rejects_invalid_embeddings(changes, message, tower, tmp_path):
    arrays = {**zero_shot_arrays("clip"), **changes}
    given = {name: value for name, value in arrays.items() if value is not None}
    np.savez(tmp_path / "classes.npz", **given)
    with pytest.raises(ValueError, match=message):
        keras_vit.zero_shot(tower("clip"), tmp_path / "classes.npz")


@pytest.mark.one_backend
def test_embeddings_are_normalized_and_scale_may_be_an_array(tower, tmp_path):
    arrays = zero_shot_arrays("siglip")
    arrays["scale"] = np.reshape(arrays["scale"], 1)
    arrays["bias"] = np.reshape(arrays["bias"], (1, 1))
    # The squares of these embeddings are 0 in float32.
    factors = 1e-40 * np.array([[2], [0.1], [30], [1]])
    arrays["embeddings"] = factors * arrays["embeddings"]
    np.savez(tmp_path / "other.npz", **arrays)
    logits = keras_vit.zero_shot(tower("siglip"), tmp_path / "other.npz")(arrays["images"])
    np.testing.assert_allclose(to_numpy(logits), arrays["logits"], atol=2e-6)


@pytest.mark.one_backend
def test_classifiers_of_one_tower_keep_their_activations(tower, tmp_path):
    arrays = zero_shot_arrays("siglip")
    bias = arrays.pop("bias")
    np.savez(tmp_path / "softmax.npz", **arrays)
    np.savez(tmp_path / "sigmoid.npz", **arrays, bias=bias)
    image_tower = tower("siglip")
    models = [
        keras_vit.zero_shot(image_tower, tmp_path / f"{name}.npz")
        for name in ("sigmoid", "softmax")
    ]
    assert [logits_activation_of(model) for model in models] == ["sigmoid", "softmax"]
    assert logits_activation_of(keras.Sequential([models[0]])) == "sigmoid"
    assert logits_activation_of(image_tower) == "softmax"
    set_logits_activation(models[1], "sigmoid")
    assert logits_activation_of(models[1]) == "sigmoid"
    assert logits_activation_of(image_tower) == "softmax"


@pytest.mark.one_backend
def test_export_check_returns_class_names(tower):
    model = keras_vit.zero_shot(tower("siglip"), FAMILY_FILES / "siglip_zeroshot.npz")
    labels, _ = keras_vit.export.check(model)
    assert labels == CLASS_NAMES


@pytest.mark.one_backend
def test_rejects_tower_with_unpooled_output(tower):
    model = tower("clip", include_top=False, classifier="token_unpooled")
    with pytest.raises(ValueError, match="outputs of shape"):
        keras_vit.zero_shot(model, FAMILY_FILES / "clip_zeroshot.npz")
