"""Tests of saving, loading and resampling the variants of position embeddings."""

import functools

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.position_embeddings import resample, resample_axis

from ..shared import TWO_LAYERS, random_images, randomize, read_arrays

pytestmark = pytest.mark.one_backend
VARIANTS = [
    {"position_embedding": "none"},
    {"position_embedding": "learned2d"},
    {"position_embedding": "relative"},
    {"position_embedding_at": "every_layer"},
    {"position_embedding": "learned2d", "position_embedding_at": "every_layer_shared"},
    {"position_embedding": "sincos2d", "class_token_position": False},
]


def build(input_shape=(8, 12, 3), seed=0, **arguments):
    sizes = {**TWO_LAYERS, "patch_size": 4}
    model = keras_vit.VisionTransformer(**{**sizes, "input_shape": input_shape, **arguments})
    return randomize(model, seed=seed)


@pytest.mark.parametrize("arguments", VARIANTS, ids=str)
def test_save_and_load_preserve_position_variants(arguments, tmp_path):
    model = build(**arguments)
    other = build(seed=1, **arguments)
    checkpoints.save(model, tmp_path / "model.npz")
    report = checkpoints.load(other, tmp_path / "model.npz")
    for ours, theirs in zip(model.weights, other.weights):
        np.testing.assert_array_equal(ours, theirs)
    assert not report.resampled
    expected = {
        "position_embedding": "learned",
        "position_embedding_at": "stem",
        "class_token_position": True,
    }
    assert {name: model.arguments[name] for name in expected} == {**expected, **arguments}


@pytest.mark.parametrize("arguments", VARIANTS[1:4], ids=str)
def test_architecture_is_inferred_from_position_variant(arguments, tmp_path):
    model = build(**arguments)
    checkpoints.save(model, tmp_path / "model.npz")
    name, inferred = checkpoints.infer_architecture(str(tmp_path / "model.npz"))
    again = getattr(keras_vit, name)(**inferred)
    checkpoints.load(again, tmp_path / "model.npz")
    images = random_images((1, 8, 12, 3))
    np.testing.assert_array_equal(again(images), model(images))


@pytest.mark.parametrize("head", ["keep", "new"])
def test_rejects_other_positions_with_equal_arrays(head, tmp_path):
    no_row = {"class_token_position": False}
    for of_file, of_model, needed in (
        (
            {"position_embedding_at": "every_layer_shared"},
            {},
            "position_embedding_at=every_layer_shared",
        ),
        (
            {"position_embedding": "none", **no_row},
            {"position_embedding": "sincos2d", **no_row},
            "embedding=none",
        ),
    ):
        checkpoints.save(build(**of_file), tmp_path / "model.npz")
        with pytest.raises(ValueError, match=f"so the model must be built with .*{needed}"):
            checkpoints.load(build(**of_model), tmp_path / "model.npz", head)


def test_new_class_token_keeps_its_position_of_each_layer(tmp_path):
    variant = {"position_embedding_at": "every_layer"}
    checkpoints.save(build(classifier="gap", **variant), tmp_path / "model.npz")
    model = build(seed=1, **variant)
    before = {weight.path: np.array(weight) for weight in model.weights}
    checkpoints.load(model, tmp_path / "model.npz", head="new")
    positions = [weight for weight in model.weights if weight.path.endswith("pos_embedding")]
    assert len(positions) == 2
    for weight in positions:
        np.testing.assert_array_equal(weight[:, :1], before[weight.path][:, :1])
        assert not np.array_equal(weight[:, 1:], before[weight.path][:, 1:])


def test_rejects_other_pool_padding(tmp_path):
    build_resnet = functools.partial(
        keras_vit.BiTResNet, depth=8, width=32, input_shape=(16, 16, 3), classes=3
    )
    checkpoints.save(build_resnet(pool_padding="minus_infinity"), tmp_path / "model.npz")
    with pytest.raises(
        ValueError, match="so the model must be built with pool_padding=minus_infinity"
    ):
        checkpoints.load(build_resnet(), tmp_path / "model.npz", "new")


def test_position_variants_are_resampled(tmp_path):
    larger = (12, 16, 3)
    for arguments in (VARIANTS[1], *VARIANTS[3:5]):
        model = build(**arguments)
        other = build(larger, **arguments)
        checkpoints.save(model, tmp_path / "model.npz")
        report = checkpoints.load(other, tmp_path / "model.npz")
        assert "resampled" in str(report)
        old, new = (
            {v.path.split("/", 1)[-1]: np.asarray(v) for v in m.weights} for m in (model, other)
        )
        for name in old:
            if name.endswith("pos_embedding"):
                np.testing.assert_allclose(new[name], resample(old[name], (2, 3), (3, 4)))
            elif name.endswith(("x_embedding", "y_embedding")):
                np.testing.assert_allclose(
                    new[name], resample_axis(old[name], 3 if "y_" in name else 4)
                )
            else:
                np.testing.assert_array_equal(new[name], old[name])


def test_resample_axis_is_linear_and_keeps_both_ends():
    line = np.array([[[0.0, 3.0], [1.0, 1.0], [2.0, -1.0]]])
    np.testing.assert_allclose(resample_axis(line, 5)[0, :, 0], [0, 0.5, 1, 1.5, 2])
    np.testing.assert_allclose(resample_axis(line, 2)[0, :, 1], [3, -1])


def test_rejects_incompatible_positions(tmp_path):
    path = tmp_path / "model.npz"
    checkpoints.save(build(position_embedding="relative"), path)
    with pytest.raises(ValueError, match="relative_embedding"):
        checkpoints.load(build(position_embedding="none"), path)
    with pytest.raises(ValueError, match="1 missing "):
        checkpoints.load(build(), path)
    with pytest.raises(ValueError, match="relative_embedding' in the checkpoint must be "):
        checkpoints.load(build((12, 16, 3), position_embedding="relative"), path)
    checkpoints.save(build(position_embedding="learned2d"), path)
    arrays = read_arrays(path)
    name = next(name for name in arrays if name.endswith("x_embedding"))
    np.savez(path, **{**arrays, name: arrays[name][..., :2]})
    with pytest.raises(ValueError, match="x_embedding' in the checkpoint must be "):
        checkpoints.load(build(position_embedding="learned2d"), path)
