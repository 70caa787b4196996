"""Tests of masked patch prediction: masks, targets and losses."""

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

from ..shared import SIZES, random_images, randomize_head


def seeds(number=0):
    return StepSeeds(keras.ops.convert_to_tensor([7, number], "uint32"))


def inputs(image_shape=(16, 20, 3), preprocessing=None):
    return types.SimpleNamespace(
        image_shape=image_shape,
        train=types.SimpleNamespace(class_names=("a", "b")),
        model_preprocessing=lambda: preprocessing or Preprocessing(),
    )


def task_of(**model):
    return tasks.get(ConfigDict(recipes.defaults(task="masked_patches", model={**SIZES, **model})))


def batch(shape=(3, 16, 20, 3)):
    images = random_images(shape)
    images[0] = 1.0  # white is the last color class
    return images, np.zeros((len(images), 2), "float32"), np.ones(len(images), "float32")


def masked(tokens, number=0, training=True):
    layer = PatchMasking()
    layer.build(tokens.shape)
    layer.mask_embedding.assign(np.full((1, 1, tokens.shape[2]), 100.0))
    with seed_scope(seeds(number)):
        outputs = layer(tokens, training=training)
    return [keras.ops.convert_to_numpy(part) for part in outputs]


@pytest.mark.parametrize(
    ("patches", "counts"),
    [(196, (98, 78, 10)), (64, (32, 26, 3)), (20, (10, 8, 1)), (1, (1, 1, 0))],
)
def test_every_image_has_exact_mask_counts(patches, counts):
    assert masking_counts(patches, 0.5) == counts
    tokens = np.arange(5 * patches, dtype="float32").reshape(5, patches, 1) * [1, -1]
    corrupted_tokens, corrupted = masked(tokens)
    is_mask = (corrupted_tokens == 100).all(-1)
    is_other = ~is_mask & (corrupted_tokens != tokens).any(-1)
    n, m, r = counts
    np.testing.assert_array_equal(corrupted.sum(1), 5 * [n])
    np.testing.assert_array_equal(is_mask.sum(1), 5 * [m])
    np.testing.assert_array_equal(is_other.sum(1), 5 * [r])
    assert (corrupted[is_mask | is_other] == 1).all()
    # Replacements are whole patches of the same image.
    numbers = corrupted_tokens[..., 0] // patches
    np.testing.assert_array_equal(numbers[is_other], np.nonzero(is_other)[0])
    np.testing.assert_array_equal(
        corrupted_tokens[is_other][:, 0], -corrupted_tokens[is_other][:, 1]
    )


def test_masks_are_uniform_and_depend_on_seed():
    tokens = np.arange(200 * 20, dtype="float32").reshape(200, 20, 1)
    first, again, other = (masked(tokens, number) for number in (0, 0, 1))
    np.testing.assert_array_equal(first[0], again[0])
    assert (first[1] != other[1]).any()
    assert (first[1][0] != first[1][1:]).any(1).all()  # every image has its own mask
    # Each patch is corrupted in about 100 of 200 images; the standard deviation is 7.
    counts = first[1].sum(0)
    assert np.abs(counts - 100).max() < 5 * 7.1
    replaced = (first[0] != tokens)[..., 0] & (first[0] != 100)[..., 0]
    steps = (first[0] - tokens)[replaced][:, 0] % 20
    assert set(steps) == set(range(1, 20))


@pytest.mark.one_backend
def test_masks_of_neighboring_seeds_are_independent():
    tokens = np.tile(np.arange(20, dtype="float32")[:, None], (16, 1, 1))
    layer = PatchMasking()
    layer.build(tokens.shape)
    corrupted = np.zeros((21, 3, 16, 20))  # seeds, steps, images, patches
    for seed, step in np.ndindex(21, 3):
        # Each step draws two random arrays.
        key = keras.ops.convert_to_tensor([seed, 2 * step], "uint32")
        with seed_scope(StepSeeds(key)):
            corrupted[seed, step] = keras.ops.convert_to_numpy(layer(tokens, training=True)[1])
    images = corrupted.reshape(-1, 20)
    assert np.abs(images.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(len(images))
    # Two independent masks of 10 out of 20 patches share 5 patches on average, with variance 10^4 /
    # (20^2 * 19).
    deviation = np.sqrt(10**4 / (20**2 * 19))
    for one, other in (
        (corrupted[1:], corrupted[:-1]),
        (corrupted[:, 1:], corrupted[:, :-1]),
        (corrupted[:, :, 1:], corrupted[:, :, :-1]),
    ):
        common = (one * other).sum(-1)
        assert abs(common.mean() - 5) < 5 * deviation / np.sqrt(common.size)
    neighbors = (images[:, 1:] * images[:, :-1]).sum(1)
    assert abs(neighbors.mean() - 19 * 10 * 9 / (20 * 19)) < 5 * neighbors.std() / np.sqrt(
        len(images)
    )


def test_evaluation_masks_do_not_depend_on_batch():
    tokens = np.arange(5 * 20, dtype="float32").reshape(5, 20, 1)
    whole = masked(tokens, training=False)
    half = masked(tokens[2:], training=False)
    np.testing.assert_array_equal(whole[0][2:], half[0])
    assert (whole[1] == whole[1][0]).all() and whole[1].sum() == 5 * 10


def test_layer_without_seeds_masks_only_in_training():
    tokens = np.random.default_rng(0).normal(size=(2, 6, 4)).astype("float32")
    layer = PatchMasking()
    same, corrupted = layer(tokens)
    np.testing.assert_array_equal(same, tokens)
    assert not keras.ops.convert_to_numpy(corrupted).any()
    np.testing.assert_array_equal(keras.ops.sum(layer(tokens, training=True)[1], axis=1), [3, 3])


def colors(values):
    """Returns the class of an RGB color with values in [0, 255]. Red is the most significant octal
    digit."""
    digits = [min(int(value // 32), 7) for value in values]
    return sum(digit * 8 ** (len(digits) - 1 - i) for i, digit in enumerate(digits))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("target", ["mean_color", "colors_4x4", "pixels"])
def test_losses_match_numpy(target, training):
    task = task_of(target=target, patch_size=8 if target == "colors_4x4" else 4)
    model = randomize_head(task.build_model(inputs((16, 24, 3))))
    examples = batch((3, 16, 24, 3))
    with seed_scope(seeds() if training else None):
        losses, metrics = task.losses_and_metrics(model, examples, training=training)
    key = seeds() if training else StepSeeds(keras.ops.convert_to_tensor([0, 0x5EED], "uint32"))
    with seed_scope(key):
        outputs, corrupted = (
            np.array(part, "float64") for part in model(examples[0], training=training)
        )
    assert list(metrics) == list(task.metrics)
    side = 8 if target == "colors_4x4" else 4
    columns = 24 // side
    expected = []
    right = []
    for image, out, is_corrupted in zip(examples[0].astype("float64"), outputs[:, 1:], corrupted):
        terms = []
        hits = []
        for patch in np.flatnonzero(is_corrupted):
            y = side * (patch // columns)
            x = side * (patch % columns)
            pixels = image[y : y + side, x : x + side]
            if target == "pixels":
                terms.append(np.mean((out[patch].reshape(side, side, 3) - pixels) ** 2))
                continue
            values = 127.5 * (pixels + 1)
            cells = 4 if target == "colors_4x4" else 1
            part = side // cells
            for cell in range(cells * cells):
                i = part * (cell // cells)
                j = part * (cell % cells)
                label = colors(values[i : i + part, j : j + part].mean((0, 1)))
                logits = out[patch].reshape(cells * cells, 512)[cell]
                terms.append(
                    np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label]
                )
                hits.append(logits.argmax() == label)
        expected.append(np.mean(terms))
        right.append(np.mean(hits) if hits else 0)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(losses), expected, rtol=1e-4)
    if target != "pixels":
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(metrics["accuracy"]), right, atol=1e-6
        )


def test_color_classes_undo_normalization():
    task = task_of()
    model = task.build_model(
        inputs(preprocessing=Preprocessing(mean=(255, 0, 51), std=(255, 255, 102)))
    )
    # Pixel values 127.5, 63.75 and 153.
    patches = np.full((1, 1, 4, 4, 3), [-0.5, 0.25, 1.0], "float32")
    (classes,) = keras.ops.convert_to_numpy(
        task._color_classes(keras.ops.convert_to_tensor(patches), model.preprocessing)
    )
    assert classes.tolist() == [[3 * 64 + 1 * 8 + 4]]


@pytest.mark.parametrize(
    "preprocessing", [None, Preprocessing(mean=(124, 116, 104), std=(58, 57, 57))]
)
@pytest.mark.parametrize("side", [1, 4, 16])
def test_colors_at_multiples_of_32_are_exact(preprocessing, side):
    task = task_of()
    model = task.build_model(inputs(preprocessing=preprocessing))
    values = np.arange(256)
    mean, std = (p.mean, p.std) if (p := preprocessing) else (127.5, 127.5)
    pixels = (values[:, None] * np.ones(3) - mean) / std
    patches = np.broadcast_to(pixels[None, :, None, None], (1, 256, side, side, 3)).astype(
        "float32"
    )
    classes = keras.ops.convert_to_numpy(
        task._color_classes(keras.ops.convert_to_tensor(patches), model.preprocessing)
    )
    # 73 is 64 + 8 + 1, for three equal digits.
    np.testing.assert_array_equal(classes[0, :, 0], values // 32 * 73)


def test_mean_color_below_bin_edge_is_in_lower_bin():
    task = task_of()
    model = task.build_model(inputs())
    patch = np.full((1, 1, 16, 16, 3), 64.0)
    patch[0, 0, 0, 0] = 63
    patch = keras.ops.convert_to_tensor((patch / 127.5 - 1).astype("float32"))
    (classes,) = keras.ops.convert_to_numpy(task._color_classes(patch, model.preprocessing))
    assert classes.tolist() == [[73]]


def test_classifier_loads_pretrained_weights(tmp_path):
    task = task_of()
    model = task.build_model(inputs())
    checkpoints.save(model, tmp_path / "weights.npz")
    classifier = tasks.get(ConfigDict(recipes.defaults(model=SIZES))).build_model(inputs())
    report = checkpoints.load(classifier, str(tmp_path / "weights.npz"), head="new")
    assert [name for name, _ in report.unused] == ["mask_patches/mask_embedding"]
    np.testing.assert_array_equal(
        classifier.get_layer("encoderblock_0").mlp_1.kernel,
        model.get_layer("encoderblock_0").mlp_1.kernel,
    )
    again = keras_vit.from_pretrained(tmp_path / "weights.npz", head="new", classes=4)
    assert type(again) is keras_vit.VisionTransformer and again.arguments["classes"] == 4


@pytest.mark.parametrize("architecture", ["BiT-R50x1", "AxialVisionTransformer"])
def test_rejects_other_architectures(architecture):
    config = ConfigDict(recipes.defaults(task="masked_patches", architecture=architecture))
    with pytest.raises(ValueError, match=f"VisionTransformer or .*: .*{architecture}'"):
        tasks.get(config)


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_representation_is_mean_of_patch_tokens(classifier):
    model = task_of(classifier=classifier).build_model(inputs())
    images = batch()[0]
    tokens = keras_vit.features(model, images, tokens="patch")
    found = keras.ops.convert_to_numpy(representation_model(model)(images))
    np.testing.assert_allclose(found, tokens.mean(1), atol=1e-5)
    with pytest.raises(ValueError, match="predicts masked patches is not a classifier"):
        evaluation.evaluate(task_of().build_model(inputs((8, 8, 3))), ["top1:digits"])


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        ({"target": "hue"}, None, "`target` must be one of mean_color, .*Received: target='hue'"),
        (
            {"classifier": "map"},
            None,
            "gap to omit the class token.*classifier='map'",
        ),
        (
            {"target": "colors_4x4", "patch_size": 2},
            (16, 20, 3),
            "must be a multiple of 4 .*Received: patches of 2x2",
        ),
        ({}, (16, 20, 5), "4 channels.*target='mean_color', channels=5"),
        (
            {"masking_rate": 1.5},
            None,
            r"must be in \(0, 1\], .*: masking_rate=1.5",
        ),
        (
            {"masking_rate": 0.0},
            None,
            r"must be in \(0, 1\], .*: masking_rate=0.0",
        ),
    ],
)
def test_rejects_invalid_arguments(model, shape, message):
    with pytest.raises(ValueError, match=message):
        task_of(**model).build_model(inputs(shape))
