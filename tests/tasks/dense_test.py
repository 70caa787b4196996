"""Tests of the tasks segmentation and depth: scores, losses, runs and evaluation by image."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops
from ml_collections import ConfigDict

from keras_vit import data, evaluation, recipes, tasks
from keras_vit.evaluation import dense
from keras_vit.preprocessing import Preprocessing
from keras_vit.tasks.dense import depth_scores
from keras_vit.training.engine import weighted_means

from ..shared import SIZES, get_config
from ..training import small_run
from .resuming import train_and_resume

MODEL = {**SIZES, "num_layers": 4}
DPT = {"head": "dpt", "features": 4, "level_channels": (4, 4, 4, 4)}
SOURCE_NAMES = {"segmentation": "scenes", "depth": "rooms"}


def scenes(split):
    """Returns the digits with masks by brightness, whose first column is ignored."""
    digits = data.load_split("digits", split)

    def read(index):
        image = digits.read(index)["image"]
        brightness = ops.cast(image[..., 0] // 6, "int32")
        is_first_column = ops.arange(8)[None] == 0
        return {"image": image, "mask": ops.where(is_first_column, 255, brightness)}

    names = ("background", "bright", "brightest")
    return dataclasses.replace(digits, read=read, class_names=names, labels=None, target="masks")


def rooms(split, *, is_known=True):
    """Returns the digits with depths; the depth of black pixels is unknown."""
    digits = data.load_split("digits", split)

    def read(index):
        image = digits.read(index)["image"]
        return {"image": image, "depth": is_known * ops.cast(image[..., 0], "float32") / 4}

    return dataclasses.replace(digits, read=read, class_names=(), labels=None, target="depth")


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    monkeypatch.setitem(data.SOURCES, "scenes", scenes)
    monkeypatch.setitem(data.SOURCES, "rooms", rooms)


def config_of(task="segmentation", **model):
    head = "linear" if task == "segmentation" else "dpt"
    fields = recipes.defaults(
        task=task,
        model={**MODEL, "head": head, **model},
        data=data.defaults(name=SOURCE_NAMES[task]),
    )
    return ConfigDict(fields)


def return_images(images, training):
    """Stands in for a model whose inputs are the logits."""
    return images


def test_mean_iou_equals_the_golden_case(golden):
    expected = golden("dense/miou")
    classes = len(expected["iou"])
    task = tasks.Segmentation(config_of())
    task.class_names = tuple(map(str, range(classes)))
    labels = expected["target"].reshape(-1, *expected["target"].shape[-2:])
    logits = np.eye(classes, dtype="float32")[expected["prediction"].reshape(labels.shape)]
    sums = []
    for part in np.array_split(np.arange(len(labels)), 2):  # the sum over batches is divided once
        batch = logits[part], labels[part].astype("uint8"), None
        values = task.evaluate(return_images, batch)
        sums.append(({name: ops.sum(value) for name, value in values.items()}, len(part)))
    results = task.results(weighted_means(sums, len(labels)))
    assert results["mean_iou"] == expected["miou"]
    assert results["pixel_accuracy"] == expected["pixel_accuracy"]
    ious = [results[f"iou/{label}"] for label in range(classes)]
    np.testing.assert_array_equal(ious, expected["iou"])
    # The evaluators count the same pixels.
    matrix = sum(dense.confusion(*image, classes) for image in zip(logits, labels))
    scores, ious = dense.scores_of(matrix)
    assert scores == {name: results[name] for name in scores}
    np.testing.assert_array_equal(ious, expected["iou"])


def test_losses_of_an_image_are_means_over_its_labeled_pixels():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 4, 6, 3)).astype("float32")
    labels = random.integers(0, 3, (2, 4, 6)).astype("uint8")
    labels[0, :2] = 255
    labels[1] = 255
    batch = ops.convert_to_tensor(logits), labels, None
    losses, metrics = tasks.Segmentation(config_of()).losses_and_metrics(return_images, batch)
    known_logits = logits[0, 2:]
    known_labels = labels[0, 2:, :, None].astype(int)
    shares = np.exp(known_logits) / np.exp(known_logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(shares, known_labels, -1)).mean()
    np.testing.assert_allclose(losses, [expected, 0], rtol=1e-5)
    right = (known_logits.argmax(-1) == known_labels[..., 0]).mean()
    np.testing.assert_allclose(metrics["pixel_accuracy"], [right, 0], rtol=1e-6)


def test_scores_of_depth():
    random = np.random.default_rng(0)
    targets = random.uniform(1, 5, (2, 3, 4)).astype("float32")
    depths = targets * random.uniform(0.7, 1.4, targets.shape).astype("float32")
    depths[0, 0] = 9
    targets[0, 0] = 0  # unknown
    losses, metrics = depth_scores(depths, ops.convert_to_tensor(targets))
    for index, known in enumerate(targets > 0):
        depth, target = (x[index][known].astype("float64") for x in (depths, targets))
        logs = np.log(depth) - np.log(target)
        expected = {
            "abs_rel_error": np.mean(np.abs(depth - target) / target),
            "rms_error": np.sqrt(np.mean((depth - target) ** 2)),
            "delta1": np.mean(np.maximum(depth / target, target / depth) < 1.25),
        }
        np.testing.assert_allclose(losses[index], np.mean(logs**2) - np.mean(logs) ** 2 / 2, 1e-4)
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name][index], value, rtol=1e-5)


@pytest.mark.parametrize(
    ("task", "model", "outputs"), [("segmentation", {}, 3), ("depth", DPT, 1)], ids=SOURCE_NAMES
)
def test_frozen_backbones_train_only_the_head(task, model, outputs):
    config = config_of(task, **model)
    inputs = data.from_config(config.data, batch_size=4, seed=0)
    frozen = tasks.get(config).make_model(inputs)
    trained = [variable.path for variable in frozen.trainable_variables]
    assert trained == [variable.path for variable in frozen.head.trainable_variables] != []
    config.model.frozen = False
    unfrozen = tasks.get(config).make_model(inputs)
    assert len(unfrozen.trainable_variables) > len(trained)
    batch = next(iter(inputs.train_batches()))
    result = tasks.get(config).outputs(unfrozen, batch, training=False)
    assert result.shape == (4, 8, 8, outputs)


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        ("segmentation", {"head": "unet"}, "head` must be linear or dpt"),
        ("segmentation", {"features": 64}, "head linear has no `config.model.features`"),
        ("depth", {"head": "linear"}, "head` must be dpt"),
    ],
)
def test_unsupported_heads_are_refused(task, model, message):
    with pytest.raises(ValueError, match=message):
        tasks.get(config_of(task, **model))


@pytest.mark.parametrize(("field", "value"), [("loss", "sigmoid"), ("patch_sizes", (2, 4))])
def test_unsupported_fields_are_refused(field, value):
    config = config_of()
    config[field] = value
    with pytest.raises(ValueError, match=f"config.{field}` must be"):
        tasks.get(config)


def test_other_architectures_are_refused():
    architecture = "AxialVisionTransformer"
    fields = recipes.defaults(task="segmentation", architecture=architecture, model=SIZES)
    with pytest.raises(ValueError, match="architecture` must be a VisionTransformer"):
        tasks.get(ConfigDict(fields))


def test_config_file_for_a_folder_with_masks_or_depths(tmp_path):
    config = get_config("segment", f"DINOv2-S/14,{tmp_path},head=dpt,resolution=56")
    assert (config.data.name, config.data.path) == ("masks", str(tmp_path))
    assert (config.data.image_size, config.best_metric) == (56, "mean_iou")
    assert (config.model.head, config.model.patch_size) == ("dpt", 14)
    depth = get_config("segment", "DINOv2-S/14,folder,task=depth")
    assert (depth.task, depth.data.name, depth.model.head) == ("depth", "depth", "dpt")
    with pytest.raises(ValueError, match="dataset and head, resolution, task"):
        get_config("segment", "DINOv2-S/14,folder,epochs=3")


def run(kind, workdir, write=print, task="segmentation", **changes):
    fields = {
        "task": task,
        "best_metric": "mean_iou" if task == "segmentation" else "abs_rel_error",
        "data": data.defaults(name=SOURCE_NAMES[task], shift=1),
        "model": {**MODEL, "dropout": 0.1, "frozen": False, **DPT},
        **changes,
    }
    return small_run.start(kind, workdir, write, **fields)


@pytest.mark.full
@pytest.mark.parametrize("task", SOURCE_NAMES)
def test_resume_is_bit_exact(task, tmp_path):
    # Other numbers of steps would compile further programs.
    fields = {"batch_size": 32, "total_steps": 6, "steps_per_call": 1, "accumulate_steps": 1}

    def train(workdir, write):
        return run("alone", workdir, write, task, **fields)

    train_and_resume(tmp_path, "after step 5", train)
    if task == "segmentation":
        header = (tmp_path / "whole" / "evaluations.csv").read_text().splitlines()[0]
        assert header.startswith("step,loss,pixel_accuracy,mean_iou,iou/background,iou/bright,")


@pytest.mark.full
@pytest.mark.one_backend
def test_two_replicas_equal_one(tmp_path):
    fields = {"batch_size": 16, "total_steps": 3, "eval_every_steps": 0, "steps_per_call": 1}
    # Without dropout, whose masks differ, and Adam, which amplifies rounding. BatchNorm must see
    # the examples of both replicas.
    fields["model"] = {**MODEL, "frozen": False, "head": "linear"}
    fields |= {"optimizer": {"name": "sgd"}, "schedule": {"base": 0.1, "decay": "constant"}}
    one = run("alone", tmp_path / "one", accumulate_steps=1, clip_norm=0.0, ema_decay=0.0, **fields)
    two = run("mirrored", tmp_path / "two", **fields)
    for ours, theirs in zip(two.model.get_weights(), one.model.get_weights()):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert abs(two.metrics["test/loss"] - one.metrics["test/loss"]) < 1e-4


def test_windows_of_an_image_fit_together():
    images = keras.Input((8, 8, 3))
    model = keras.Model(images, keras.layers.Activation("linear")(images))
    image = np.random.default_rng(0).integers(0, 256, (8, 21, 3)).astype("uint8")
    preprocessing = Preprocessing(mean=(0, 0, 0), std=(1, 1, 1))
    whole = dense.predict_pixels(model, image, preprocessing, windows=True)
    np.testing.assert_allclose(whole, image, atol=1e-3)
    assert dense._starts(21, 8) == [0, 5, 10, 13]
    resized = dense.predict_pixels(model, image, preprocessing)
    assert resized.shape == (8, 21, 3) and not np.allclose(resized, image, atol=1)


def load_test_images(name, **options):
    config = {"name": name, "test_split": "test[:5]", **options}
    return data.from_config(config, batch_size=4, seed=0)


class Brightness(keras.layers.Layer):
    """Returns logits for the classes of `scenes`."""

    def call(self, images):
        level = 8 * (images[..., :1] + 1) / 6 - 0.45
        return -ops.square(level - ops.convert_to_tensor([0.0, 1.0, 2.0]))


def test_segmentation_evaluators_and_report(tmp_path):
    inputs = load_test_images("scenes")
    images = keras.Input((8, 8, 3))
    model = keras.Model(images, Brightness()(images))
    results = evaluation.evaluate(model, ["segmentation", "segmentation_windows"], inputs)
    for name in ("segmentation", "segmentation_windows"):
        assert results[f"{name}/mean_iou"] == results[f"{name}/pixel_accuracy"] == 1
        assert results[f"{name}/iou/bright"] == 1
    page = evaluation.REPORTS["masks"](model, inputs, tmp_path)
    assert "5 images, mean IoU 1.0000" in page.read_text()
    figures = {path.name for path in tmp_path.glob("*.png")}
    assert figures == {"iou.png", "confusion.png", "worst.png"}

    def read(index):
        example = inputs.test.read(index)
        return {**example, "mask": ops.where(index == 0, 255, example["mask"])}

    test = dataclasses.replace(inputs.test, read=read)
    page = evaluation.REPORTS["masks"](model, dataclasses.replace(inputs, test=test), tmp_path)
    assert "4 images, mean IoU 1.0000" in page.read_text()  # one has no known pixels
    with pytest.raises(ValueError, match="evaluators of models of pixels"):
        evaluation.evaluate(model, ["top1"], inputs)
    with pytest.raises(ValueError, match="Segmentation needs data with masks"):
        evaluation.evaluate(model, ["segmentation"], load_test_images("rooms"))


def test_depth_evaluator():
    images = keras.Input((8, 8, 3))
    model = keras.Model(images, (images[..., 0] + 1) * 2)
    scores = evaluation.evaluate(model, ["depth"], load_test_images("rooms"))
    assert scores["depth/delta1"] == 1 and scores["depth/rms_error"] < 1e-6
    with pytest.raises(ValueError, match="a depth with known pixels"):
        evaluation.evaluate(model, ["depth"], load_test_images("rooms", is_known=False))
    with pytest.raises(ValueError, match="Depth needs data with depths"):
        evaluation.evaluate(model, ["depth"], load_test_images("scenes"))
