"""Tests of masked patch prediction: masks, targets, losses and a resumed run."""

import types

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
from keras_vit import checkpoints, evaluation, recipes, tasks
from keras_vit.evaluation.frozen import representation_model
from keras_vit.layers.dropout import StepSeeds, seed_scope
from keras_vit.layers.patch_masking import PatchMasking, masking_counts
from keras_vit.preprocessing import Preprocessing

from ..numpy_reference import to_patches
from ..shared import (
    SIZES,
    assert_close,
    assert_same_weights,
    random_images,
    randomize_head,
    to_numpy,
)
from ..training import small_run
from .resuming import train_and_resume


def seeds(*numbers):
    return StepSeeds(keras.ops.convert_to_tensor(numbers, "uint32"))


def inputs(image_shape=(16, 20, 3), preprocessing=None):
    """Returns a stand-in for `InputPipeline` with the attributes that a task uses."""
    return types.SimpleNamespace(
        image_shape=image_shape,
        train=types.SimpleNamespace(class_names=("a", "b")),
        model_preprocessing=lambda: preprocessing or Preprocessing(),
    )


def task_of(**model):
    return tasks.get(ConfigDict(recipes.defaults(task="masked_patches", model={**SIZES, **model})))


def corrupt(tokens, seed=0, training=True):
    """Returns the corrupted tokens, with a mask embedding of 100, and which ones are corrupted."""
    layer = PatchMasking()
    layer.build(tokens.shape)
    layer.mask_embedding.assign(np.full((1, 1, tokens.shape[2]), 100.0))
    with seed_scope(seeds(7, seed)):
        return [to_numpy(output) for output in layer(tokens, training=training)]


@pytest.mark.parametrize("patches, counts", [(34, (17, 14, 2)), (1, (1, 1, 0))])
def test_every_image_has_exact_mask_counts(patches, counts):
    assert masking_counts(patches, 0.5) == counts
    tokens = np.arange(5 * patches, dtype="float32").reshape(5, patches, 1) * [1, -1]
    corrupted_tokens, corrupted = corrupt(tokens)
    is_mask = (corrupted_tokens == 100).all(-1)
    is_other = ~is_mask & (corrupted_tokens != tokens).any(-1)
    for array, count in zip((corrupted, is_mask, is_other), counts):
        np.testing.assert_array_equal(array.sum(1), 5 * [count])
    assert (corrupted[is_mask | is_other] == 1).all()
    # Replacements are whole patches of the same image.
    others = corrupted_tokens[is_other]
    np.testing.assert_array_equal(others[:, 0] // patches, np.nonzero(is_other)[0])
    np.testing.assert_array_equal(others[:, 0], -others[:, 1])


def test_patches_are_replaced_by_any_other_patch():
    tokens = np.arange(200 * 20, dtype="float32").reshape(200, 20, 1)
    corrupted_tokens, _ = corrupt(tokens)
    is_replaced = (corrupted_tokens != tokens) & (corrupted_tokens != 100)
    steps = (corrupted_tokens - tokens)[is_replaced] % 20
    assert set(steps) == set(range(1, 20))


def test_masks_of_neighboring_seeds_are_independent():
    tokens = np.tile(np.arange(20, dtype="float32")[:, None], (16, 1, 1))
    layer = PatchMasking()
    layer.build(tokens.shape)
    corrupted = np.zeros((21, 3, 16, 20))  # seeds, steps, images, patches
    for seed, step in np.ndindex(21, 3):
        with seed_scope(seeds(seed, 2 * step)):  # each step draws two random arrays
            corrupted[seed, step] = to_numpy(layer(tokens, training=True)[1])
    images = corrupted.reshape(-1, 20)
    assert np.abs(images.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(len(images))
    # Two independent masks of 10 out of 20 patches share 5 patches on average, with variance 10^4 /
    # (20^2 * 19).
    deviation = np.sqrt(10**4 / (20**2 * 19))
    for axis in range(3):
        differences = np.abs(np.diff(corrupted, axis=axis)).sum(-1)
        common = 10 - differences / 2
        assert abs(common.mean() - 5) < 5 * deviation / np.sqrt(common.size)
    # Two neighboring patches are both corrupted with a probability of 10 * 9 / (20 * 19).
    pairs = (images[:, 1:] * images[:, :-1]).sum(1)
    assert abs(pairs.mean() - 10 * 9 / 20) < 5 * pairs.std() / np.sqrt(len(images))


def test_evaluation_masks_do_not_depend_on_batch():
    tokens = np.arange(5 * 20, dtype="float32").reshape(5, 20, 1)
    whole_tokens, whole_mask = corrupt(tokens, training=False)
    half_tokens, _ = corrupt(tokens[2:], training=False)
    np.testing.assert_array_equal(whole_tokens[2:], half_tokens)
    assert (whole_mask == whole_mask[0]).all() and whole_mask.sum() == 5 * 10


def test_layer_without_seeds_masks_only_in_training():
    tokens = np.random.default_rng(0).normal(size=(2, 6, 4)).astype("float32")
    layer = PatchMasking()
    same, corrupted = layer(tokens)
    np.testing.assert_array_equal(same, tokens)
    assert not to_numpy(corrupted).any()
    np.testing.assert_array_equal(keras.ops.sum(layer(tokens, training=True)[1], axis=1), [3, 3])


def expected_values(target, patches, outputs):
    """Returns the losses and the accuracies of patches `(N, P, P, 3)`."""
    if target == "pixels":
        return np.mean((outputs - patches.reshape(outputs.shape)) ** 2, axis=-1), None
    side = patches.shape[1] // 4 if target == "colors_4x4" else patches.shape[1]
    cells = to_patches(patches, side)
    colors = cells.reshape(*cells.shape[:2], -1, 3).mean(2)
    levels = np.minimum(127.5 * (colors + 1) // 32, 7)
    labels = (levels @ [64, 8, 1]).astype(int)  # red is the most significant octal digit
    logits = outputs.reshape(*labels.shape, 512)
    chosen = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    losses = np.log(np.exp(logits).sum(-1)) - chosen
    return losses.mean(-1), (logits.argmax(-1) == labels).mean(-1)


@pytest.mark.parametrize(
    "target, training",
    [("mean_color", False), ("mean_color", True), ("colors_4x4", True), ("pixels", True)],
)
def test_losses_match_numpy(target, training):
    patch_size = 8 if target == "colors_4x4" else 4
    task = task_of(target=target, patch_size=patch_size)
    model = randomize_head(task.build_model(inputs((16, 24, 3))))
    images = random_images((3, 16, 24, 3))
    images[0] = 1.0  # white is the last color class
    with seed_scope(seeds(7, 0) if training else None):
        result, metrics = task.losses_and_metrics(model, (images, None, None), training=training)
    with seed_scope(seeds(7, 0) if training else seeds(0, 0x5EED)):
        outputs, corrupted = map(to_numpy, model(images, training=training))
    is_corrupted = corrupted.astype(bool)
    patches = to_patches(images.astype("float64"), patch_size)[is_corrupted]
    losses, accuracies = expected_values(
        target,
        patches.reshape(-1, patch_size, patch_size, 3),
        outputs[:, 1:][is_corrupted].astype("float64"),
    )
    # Every image has the same number of corrupted patches.
    assert_close(result, losses.reshape(3, -1).mean(1))
    assert list(metrics) == list(task.metrics)
    if target != "pixels":
        accuracy = to_numpy(metrics["accuracy"])
        np.testing.assert_allclose(accuracy, accuracies.reshape(3, -1).mean(1), atol=1e-6)


def color_classes(patches, preprocessing=None):
    """Returns the classes of the mean colors of normalized patches `(N, P, Q, 3)`."""
    task = task_of()
    model = task.build_model(inputs(preprocessing=preprocessing))
    patches = keras.ops.convert_to_tensor(patches[None].astype("float32"))
    return to_numpy(task._color_classes(patches, model.preprocessing))[0, :, 0].tolist()


@pytest.mark.parametrize(
    "preprocessing", [Preprocessing(), Preprocessing(mean=(124, 116, 104), std=(58, 57, 57))]
)
@pytest.mark.parametrize("side", [1, 16])
def test_colors_at_multiples_of_32_are_exact(preprocessing, side):
    values = np.arange(256)
    colors = (values[:, None] * np.ones(3) - preprocessing.mean) / preprocessing.std
    patches = np.broadcast_to(colors[:, None, None], (256, side, side, 3))
    # 73 is 64 + 8 + 1, for three equal digits.
    assert color_classes(patches, preprocessing) == (values // 32 * 73).tolist()


def test_mean_color_below_bin_edge_is_in_lower_bin():
    patch = np.full((1, 16, 16, 3), 64.0)
    patch[0, 0, 0] = 63
    assert color_classes(patch / 127.5 - 1) == [73]


def test_classifier_loads_pretrained_weights(tmp_path):
    path = str(tmp_path / "weights.npz")
    model = task_of().build_model(inputs())
    checkpoints.save(model, path)
    classifier = keras_vit.from_pretrained(path, head="new", classes=4)
    assert type(classifier) is keras_vit.VisionTransformer
    assert_same_weights(*(each.get_layer("encoderblock_0") for each in (classifier, model)))
    report = checkpoints.load(classifier, path, head="new")
    assert [name for name, _ in report.unused] == ["mask_patches/mask_embedding"]


def test_representation_is_mean_of_patch_tokens():
    model = task_of().build_model(inputs())
    images = random_images((3, 16, 20, 3))
    tokens = keras_vit.features(model, images, tokens="patch")
    assert_close(representation_model(model)(images), tokens.mean(1))


def test_model_of_masked_patches_is_no_classifier():
    with pytest.raises(ValueError, match="predicts masked patches is not a classifier"):
        evaluation.evaluate(task_of().build_model(inputs((8, 8, 3))), ["top1:digits"])


@pytest.mark.parametrize(
    "model, batches, message",
    [
        ({"target": "hue"}, {}, "model.target` must be one of"),
        ({"classifier": "map"}, {}, "model.classifier` must be token, or gap"),
        ({"masking_rate": 0.0}, {}, "masking_rate` must be in"),
        ({"target": "colors_4x4", "patch_size": 2}, {}, "must be a multiple of 4"),
        ({}, {"image_shape": (16, 20, 5)}, "more than 4 channels"),
        ({}, {"preprocessing": Preprocessing(resize="naflex")}, "takes images of one size"),
    ],
)
def test_rejects_invalid_arguments(model, batches, message):
    with pytest.raises(ValueError, match=message):
        task_of(**model).build_model(inputs(**batches))


def test_rejects_other_architectures():
    config = recipes.defaults(task="masked_patches", architecture="AxialVisionTransformer")
    with pytest.raises(ValueError, match="must be VisionTransformer"):
        tasks.get(ConfigDict(config))


def test_rejects_unknown_fields():
    config = task_of().config
    config.model = {**config.model.to_dict(), "depth": 0}
    with pytest.raises(ValueError, match="does not have. Received: depth"):
        tasks.get(config)


@pytest.mark.full
def test_resume_on_two_replicas_is_bit_exact(tmp_path):
    fields = {
        "task": "masked_patches",
        "batch_size": 32,
        "total_steps": 4,
        "steps_per_call": 1,
        "checkpoint_every_steps": 2,
        "eval_every_steps": 0,
        "model": {**SIZES, "patch_size": 2, "dropout": 0.1},
    }

    def train(workdir, write):
        return small_run.start("mirrored", workdir, write, **fields)

    lines, resumed, whole = train_and_resume(tmp_path, "step 3/4", train)
    assert any("2 x 16 images per step" in line for line in lines)
    assert to_numpy(whole.model.get_layer("mask_patches").mask_embedding).all()
    # A uniform prediction over the 512 color classes has a loss of log(512).
    assert 0 < whole.metrics["test/loss"] < 1.01 * np.log(512)
    # Every evaluation masks the same patches.
    assert resumed.metrics["test/loss"] == whole.metrics["test/loss"]
