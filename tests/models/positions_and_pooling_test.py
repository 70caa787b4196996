"""Tests of the `VisionTransformer` arguments that checkpoints of other libraries need."""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import TWO_LAYERS, random_images, randomize


def small(**arguments):
    return keras_vit.VisionTransformer(**TWO_LAYERS, input_shape=(16, 24, 3), **arguments)


def test_class_token_without_position_is_added_after_positions():
    model = small(class_token_position=False)
    assert model.get_layer("position_embedding").pos_embedding.shape == (1, 6, 8)
    names = [layer.name for layer in model.layers]
    assert names.index("class_token") > names.index("position_embedding")
    assert small().get_layer("position_embedding").pos_embedding.shape == (1, 7, 8)


def test_fixed_positions_have_no_weights():
    fixed = small(classifier="gap", position_embedding="sincos2d")
    learned = small(classifier="gap")
    # The learned embeddings of six patches have eight values each.
    assert fixed.count_params() == learned.count_params() - 6 * 8


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"position_embedding": "2d"}, "one of learned.*position_embedding='2d'"),
        ({"position_embedding": "sincos2d"}, "`class_token_position` must be False"),
        ({"epsilon": 0}, "`epsilon` must be a number above 0"),
        ({"classifier": "attention"}, "`classifier` must be one of token, gap, token_gap, map"),
    ],
)
def test_rejects_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        small(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"classifier": "map", "exact_gelu": True, "epsilon": 1e-12},
        {"classifier": "token", "class_token_position": False, "position_embedding": "sincos2d"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", pytest.param("float32", marks=pytest.mark.one_backend)]
)
def test_keras_file_preserves_outputs(arguments, policy, tmp_path):
    model = randomize(small(**arguments, dtype=policy))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    images = random_images((2, 16, 24, 3))
    np.testing.assert_array_equal(
        loaded.predict(images, verbose=0), model.predict(images, verbose=0)
    )
