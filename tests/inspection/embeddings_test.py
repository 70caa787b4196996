"""Tests of position similarities, and of the components of filters and patches."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

from ..shared import THREE_LAYERS, random_images, randomize, to_numpy

MODEL = {**THREE_LAYERS, "num_layers": 2}


@pytest.mark.parametrize("changes", [{}, {"classifier": "gap"}], ids=["token", "gap"])
def test_position_similarity_excludes_the_class_token(changes):
    vit = randomize(keras_vit.VisionTransformer(**MODEL, **changes))
    model = keras.Sequential([keras.Input((24, 16, 3)), vit])
    similarity = inspection.position_similarity(model)
    assert similarity.shape == (3, 2, 3, 2)
    patches = to_numpy(vit.get_layer("position_embedding").pos_embedding)[0, -6:]
    unit = patches / np.linalg.norm(patches, axis=1, keepdims=True)
    np.testing.assert_allclose(similarity.reshape(6, 6), unit @ unit.T, atol=1e-6)


def test_zero_positions_have_no_similarity():
    model = keras_vit.VisionTransformer(**MODEL)
    embedding = model.get_layer("position_embedding").pos_embedding
    embedding.assign(np.zeros(embedding.shape))
    assert not inspection.position_similarity(model).any()


def test_similarity_of_sines_decreases_with_the_distance():
    sines = {"position_embedding": "sincos2d", "class_token_position": False}
    model = keras_vit.VisionTransformer(**MODEL, **sines)
    to_first_patch = inspection.position_similarity(model)[0, 0]
    assert to_first_patch[0, 0] > to_first_patch[1, 0] > to_first_patch[1, 1]


def test_filter_components_match_an_svd():
    model = keras_vit.VisionTransformer(**MODEL)
    components = inspection.filter_components(model, 5)
    assert components.shape == (5, 8, 8, 3)
    assert components.min() == 0
    assert components.max() == 1
    filters = np.array(model.get_layer("embedding").kernel).T
    _, _, expected = np.linalg.svd(filters - filters.mean(0), full_matrices=False)
    for component, vector in zip(components, expected):
        assert abs(np.corrcoef(component.ravel(), vector)[0, 1]) > 0.999
    assert len(inspection.filter_components(model)) == 12  # limited by the number of filters


def test_patch_components_are_scaled_over_all_images():
    model = keras_vit.VisionTransformer(**MODEL)
    images = random_images((3, 24, 16, 3))
    colors = inspection.patch_components(model, images, layer=1)
    assert colors.shape == (3, 3, 2, 3)
    np.testing.assert_allclose(colors.min((0, 1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(colors.max((0, 1, 2)), 1, atol=1e-6)
    # The colors are uncorrelated over the patches of all images.
    np.testing.assert_allclose(np.corrcoef(colors.reshape(-1, 3).T), np.eye(3), atol=1e-3)


def test_rejects_models_without_filters_and_positions():
    hybrid = keras_vit.VisionTransformer(**{**MODEL, "patch_size": 2}, resnet_blocks=(1,))
    with pytest.raises(ValueError, match="must not be a hybrid"):
        inspection.filter_components(hybrid)
    with pytest.raises(ValueError, match="no Vision Transformer"):
        inspection.position_similarity(keras.Sequential([keras.layers.Dense(1)]))


@pytest.mark.parametrize("count", [0, 7])
def test_components_cannot_outnumber_the_patches(count):
    model = keras_vit.VisionTransformer(**MODEL)
    with pytest.raises(ValueError, match=rf"in \[1, 6\]. Received: count={count}"):
        inspection.patch_components(model, random_images((1, 24, 16, 3)), count=count)
