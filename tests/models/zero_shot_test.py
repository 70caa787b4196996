"""Tests of zero-shot classifiers against the two-tower models of transformers."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models.any_model import logits_activation_of

from ..shared import FAMILY_FILES


@pytest.fixture
def tower(tmp_path):
    """Returns a function that builds the image tower of a golden file."""

    def build(case, **arguments):
        folder = tmp_path / case
        folder.mkdir(exist_ok=True)
        for ending, name in (("safetensors", "model.safetensors"), ("config.json", "config.json")):
            (folder / name).write_bytes((FAMILY_FILES / f"{case}.{ending}").read_bytes())
        return keras_vit.from_pretrained(folder, **arguments)

    return build


@pytest.mark.parametrize(("case", "activation"), [("siglip", "sigmoid"), ("clip", "softmax")])
def test_logits_and_probabilities_match_transformers(case, activation, tower, tmp_path):
    source = FAMILY_FILES / f"{case}_zeroshot.npz"
    expected = np.load(source)
    model = keras_vit.zero_shot(tower(case), source)
    logits = keras.ops.convert_to_numpy(model(expected["images"]))
    np.testing.assert_allclose(logits, expected["logits"], atol=2e-6)
    assert logits_activation_of(model) == activation
    probabilities = keras.ops.convert_to_numpy(getattr(keras.ops, activation)(logits))
    np.testing.assert_allclose(probabilities, expected["probabilities"], atol=1e-6)

    model.save(tmp_path / "classifier.keras")
    again = keras_vit.models.load_keras_file(tmp_path / "classifier.keras")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(again(expected["images"])), logits)
    assert again.layers[-1].class_names == ["cat", "dog", "a tree", "Ünï"]
    assert logits_activation_of(again) == activation
    assert not again.layers[-1].trainable_variables


@pytest.mark.one_backend
def test_scaling_text_embeddings_keeps_logits(tower, tmp_path):
    arrays = dict(np.load(FAMILY_FILES / "clip_zeroshot.npz"))
    images = arrays["images"]
    np.savez(
        tmp_path / "other.npz",
        **{**arrays, "embeddings": arrays["embeddings"] * np.array([[2], [0.1], [30], [1]])},
    )
    model = tower("clip")
    ours = keras_vit.zero_shot(model, tmp_path / "other.npz")(images)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(ours), arrays["logits"], atol=2e-6)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"embeddings": np.ones((4, 8))},
            r"\(B, 8\), as wide as .*\(None, 20\)",
        ),
        ({"embeddings": np.ones((3, 20))}, r"`names` must be K strings.*\(3, 20\)"),
        ({"embeddings": np.zeros((4, 20))}, "none may be all zeros"),
        ({"scale": np.nan}, "`scale` must be above 0"),
        ({"scale": None}, "arrays names, embeddings, scale. Received: .* without scale"),
        (
            {"scale": -2.3},
            "must be above 0, .* Received: scale=-2.3",
        ),
        ({"scale": np.ones(4)}, "size 1"),
        ({"names": np.array([1, 2, 3, 4])}, "`names` must be K strings.*int64"),
        ({"names": np.array(["a", None, "b", "c"], object)}, "must be an .npz file"),
    ],
)
def test_rejects_invalid_embeddings(changes, message, tower, tmp_path):
    arrays = {**np.load(FAMILY_FILES / "clip_zeroshot.npz"), **changes}
    np.savez(
        tmp_path / "classes.npz",
        **{name: value for name, value in arrays.items() if value is not None},
    )
    with pytest.raises(ValueError, match=message):
        keras_vit.zero_shot(tower("clip"), tmp_path / "classes.npz")


@pytest.mark.one_backend
def test_scale_and_bias_may_be_arrays_of_one_value(tower, tmp_path):
    arrays = dict(np.load(FAMILY_FILES / "siglip_zeroshot.npz"))
    changes = {"scale": np.reshape(arrays["scale"], 1), "bias": np.reshape(arrays["bias"], (1, 1))}
    np.savez(
        tmp_path / "other.npz",
        **{**arrays, **changes, "embeddings": 1e-40 * arrays["embeddings"].astype(float)},
    )
    logits = keras_vit.zero_shot(tower("siglip"), tmp_path / "other.npz")(arrays["images"])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(logits), arrays["logits"], atol=2e-6)


@pytest.mark.one_backend
def test_classifiers_of_one_tower_keep_their_activations(tower, tmp_path):
    arrays = dict(np.load(FAMILY_FILES / "siglip_zeroshot.npz"))
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


@pytest.mark.one_backend
def test_export_check_returns_class_names(tower):
    model = keras_vit.zero_shot(tower("siglip"), FAMILY_FILES / "siglip_zeroshot.npz")
    labels, _ = keras_vit.export.check(model)
    assert labels == ("cat", "dog", "a tree", "Ünï")


@pytest.mark.one_backend
def test_rejects_tower_with_unpooled_output(tower):
    with pytest.raises(ValueError, match=r"Received: outputs of shape \(None, 17, 24\)"):
        model = tower("clip", include_top=False, classifier="token_unpooled")
        keras_vit.zero_shot(model, FAMILY_FILES / "clip_zeroshot.npz")
