"""Tests of `decode_predictions`."""

import numpy as np
import pytest

import keras_vit


def test_top_classes_are_sorted_and_named():
    scores = np.array([[0.25, 0.5, 0.25], [0.5, 0.125, 0.375]])
    names = ["cat", "dog", "owl"]
    _, decoded = keras_vit.decode_predictions(scores, top=2, names=names)
    assert decoded == [(0, "cat", 0.5), (2, "owl", 0.375)]
    assert len(keras_vit.decode_predictions(scores, top=9, names=names)[0]) == 3


@pytest.mark.parametrize(
    ("activation", "expected"),
    [("auto", [3 / 4, 1 / 4]), ("sigmoid", [3 / 4, 1 / 2]), ("none", [np.log(3), 0])],
)
def test_activation_converts_logits(activation, expected):
    logits = np.log([[1, 3]])
    (decoded,) = keras_vit.decode_predictions(logits, names=["cat", "dog"], activation=activation)
    assert [name for _, name, _ in decoded] == ["dog", "cat"]
    np.testing.assert_allclose([score for *_, score in decoded], expected, rtol=1e-6)


@pytest.mark.parametrize(("classes", "file"), [(1000, "ilsvrc2012"), (21843, "imagenet21k")])
def test_published_names_are_read_from_mirror(classes, file, tmp_path, monkeypatch):
    (tmp_path / "bit_models").mkdir()
    path = tmp_path / "bit_models" / f"{file}_wordnet_lemmas.txt"
    path.write_text("".join(f"class {i}\n" for i in range(classes)))
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    scores = np.eye(1, classes, k=17, dtype="float32")
    assert keras_vit.decode_predictions(scores, top=1) == [[(17, "class 17", 1.0)]]
    path.write_text("one\n")
    with pytest.raises(ValueError, match="must have one name per class"):
        keras_vit.decode_predictions(scores)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"predictions": np.zeros(3)}, r"\(B, classes\)"),
        ({"predictions": np.zeros((1, 3))}, "only published for 1000 and 21843 classes"),
        ({"predictions": np.zeros((1, 3)), "names": ["a"]}, "classes=3, names=1"),
        (
            {"predictions": np.zeros((1, 1)), "names": ["a"], "activation": "tanh"},
            "activation='tanh'",
        ),
    ],
)
def test_rejects_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.decode_predictions(**arguments)
