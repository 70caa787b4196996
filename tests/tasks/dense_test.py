"""Tests of the tasks segmentation and depth: scores, losses, runs and evaluation by image."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from ml_collections import ConfigDict

from keras_vit import data, evaluation, losses, recipes, tasks
from keras_vit.evaluation import dense
from keras_vit.preprocessing import Preprocessing
from keras_vit.training.engine import weighted_means

from ..shared import SIZES, assert_close, get_config
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


def config_of(task="segmentation", model=(), **fields):
    head = "linear" if task == "segmentation" else "dpt"
    fields = recipes.defaults(
        task=task,
        model={**MODEL, "head": head, **dict(model)},
        data=data.defaults(name=SOURCE_NAMES[task]),
        **fields,
    )
    return ConfigDict(fields)


def return_images(images, training):
    """Stands in for a model whose inputs are the logits."""
    return images


def get_inputs(name, **options):
    config = {"name": name, "test_split": "test[:5]", **options}
    return data.from_config(config, batch_size=4, seed=0)


@pytest.fixture
def predicted(golden):
    """Returns labels, logits and the scores of a reference implementation."""
    case = golden("dense/miou")
    size = case["target"].shape[-2:]
    logits = np.eye(len(case["iou"]), dtype="float32")[case["prediction"].reshape(-1, *size)]
    scores = {"pixel_accuracy": case["pixel_accuracy"], "mean_iou": case["miou"]}
    return case["target"].reshape(-1, *size), logits, scores, case["iou"]


def test_scores_of_an_evaluation_match_the_reference(predicted):
    labels, logits, scores, ious = predicted
    task = tasks.Segmentation(config_of())
    task.class_names = range(len(ious))
    sums = []
    for part in np.array_split(np.arange(len(labels)), 2):  # the sum over batches is divided once
        batch = logits[part], labels[part].astype("uint8"), None
        values = task.evaluate(return_images, batch).items()
        sums.append(({name: ops.sum(value) for name, value in values}, len(part)))
    means = weighted_means(sums, len(labels))
    before = dict(means)
    results = task.results(means)
    assert means == before and not any(name.startswith("both/") for name in results)
    assert {name: results[name] for name in scores} == scores
    np.testing.assert_array_equal([results[f"iou/{name}"] for name in task.class_names], ious)


def test_scores_of_the_evaluators_match_the_reference(predicted):
    labels, logits, scores, ious = predicted
    matrix = sum(dense.confusion(*image, len(ious)) for image in zip(logits, labels))
    result, ious_of_matrix = dense.scores_of(matrix)
    assert result == scores
    np.testing.assert_array_equal(ious_of_matrix, ious)


def test_losses_of_an_image_are_means_over_its_labeled_pixels():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 4, 6, 3)).astype("float32")
    labels = random.integers(0, 3, (2, 4, 6)).astype("uint8")
    labels[0, :2] = 255
    labels[1] = 255
    batch = ops.convert_to_tensor(logits), labels, None
    result, metrics = tasks.Segmentation(config_of()).losses_and_metrics(return_images, batch)
    known_logits = logits[0, 2:].reshape(-1, 3)
    known_labels = labels[0, 2:].ravel()
    expected = np.mean(losses.softmax(np.eye(3)[known_labels], known_logits))
    assert_close(result, [expected, 0])
    right = np.mean(known_logits.argmax(-1) == known_labels)
    assert_close(metrics["pixel_accuracy"], [right, 0])


def test_scores_of_depth():
    random = np.random.default_rng(0)
    targets = random.uniform(1, 5, (2, 3, 4)).astype("float32")
    depths = targets * random.uniform(0.7, 1.4, targets.shape).astype("float32")
    depths[0, 0] = 9
    targets[0, 0] = 0  # unknown
    batch = depths, targets, None
    result, metrics = tasks.Depth(config_of("depth")).losses_and_metrics(return_images, batch)
    for index, known in enumerate(targets > 0):
        depth, target = (x[index][known].astype("float64") for x in (depths, targets))
        logs = np.log(depth / target)
        expected = {
            "abs_rel_error": np.mean(np.abs(depth - target) / target),
            "rms_error": np.sqrt(np.mean((depth - target) ** 2)),
            "delta1": np.mean(np.abs(logs) < np.log(1.25)),
        }
        assert_close(result[index], np.mean(logs**2) - np.mean(logs) ** 2 / 2, 1e-4)
        assert {name: float(value[index]) for name, value in metrics.items()} == pytest.approx(
            expected, rel=1e-5
        )


@pytest.mark.parametrize("task, model", [("segmentation", {}), ("depth", DPT)])
def test_frozen_backbones_train_only_the_head(task, model):
    config = config_of(task, model)
    inputs = get_inputs(SOURCE_NAMES[task])
    frozen = tasks.get(config).make_model(inputs)
    trained = [variable.path for variable in frozen.trainable_variables]
    assert trained == [variable.path for variable in frozen.head.trainable_variables] != []
    config.model.frozen = False
    unfrozen = tasks.get(config).make_model(inputs)
    assert len(unfrozen.trainable_variables) > len(trained)


@pytest.mark.parametrize(
    "task, fields, message",
    [
        ("segmentation", {"model": {"head": "unet"}}, "head` must be linear or dpt"),
        ("segmentation", {"model": {"features": 64}}, "no `config.model.features`"),
        ("depth", {"model": {"head": "linear"}}, "head` must be dpt"),
        ("segmentation", {"loss": "sigmoid"}, "loss` must be"),
        ("segmentation", {"patch_sizes": (2, 4)}, "patch_sizes` must be"),
        ("segmentation", {"architecture": "AxialVisionTransformer"}, "must be a VisionTransformer"),
    ],
)
def test_unsupported_fields_are_refused(task, fields, message):
    with pytest.raises(ValueError, match=message):
        tasks.get(config_of(task, **fields))


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
    # Without dropout, whose masks differ, and Adam, which amplifies rounding. BatchNorm must see
    # the examples of both replicas.
    fields = {
        "batch_size": 16,
        "total_steps": 3,
        "eval_every_steps": 0,
        "steps_per_call": 1,
        "model": {**MODEL, "frozen": False},
        "optimizer": {"name": "sgd"},
        "schedule": {"base": 0.1},
    }
    one = run("alone", tmp_path / "one", accumulate_steps=1, clip_norm=0.0, ema_decay=0.0, **fields)
    two = run("mirrored", tmp_path / "two", **fields)
    for ours, theirs in zip(two.model.get_weights(), one.model.get_weights()):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert abs(two.metrics["test/loss"] - one.metrics["test/loss"]) < 1e-4


def test_windows_of_an_image_fit_together():
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Identity()])
    image = np.random.default_rng(0).integers(0, 256, (8, 21, 3)).astype("uint8")
    preprocessing = Preprocessing(mean=(0, 0, 0), std=(1, 1, 1))
    whole = dense.predict_pixels(model, image, preprocessing, windows=True)
    np.testing.assert_allclose(whole, image, atol=1e-3)
    assert dense._starts(21, 8) == [0, 5, 10, 13]
    resized = dense.predict_pixels(model, image, preprocessing)
    assert resized.shape == (8, 21, 3) and not np.allclose(resized, image, atol=1)


@pytest.fixture
def segmenter():
    """Returns a model that segments `scenes` without errors."""
    images = keras.Input((8, 8, 3))
    pixels = 8 * (images[..., :1] + 1)  # from 0 to 16
    # The classes begin at pixels of 0, 6 and 12, so their centers are at 2.5, 8.5 and 14.5.
    return keras.Model(images, -ops.square((pixels - 2.5) / 6 - np.arange(3)))


@pytest.mark.parametrize("name", ["segmentation", "segmentation_windows"])
def test_segmentation_evaluators(name, segmenter):
    results = evaluation.evaluate(segmenter, [name], get_inputs("scenes"))
    scores = ("mean_iou", "pixel_accuracy", "iou/bright")
    assert [results[f"{name}/{score}"] for score in scores] == [1, 1, 1]


def test_report_of_masks_omits_images_without_known_pixels(segmenter, tmp_path):
    inputs = get_inputs("scenes")

    def read(index):
        example = inputs.test.read(index)
        return {**example, "mask": ops.where(index == 0, 255, example["mask"])}

    test = dataclasses.replace(inputs.test, read=read)
    changed = dataclasses.replace(inputs, test=test)
    page = evaluation.REPORTS["masks"](segmenter, changed, tmp_path)
    assert "4 images, mean IoU 1.0000" in page.read_text()
    figures = {path.name for path in tmp_path.glob("*.png")}
    assert figures == {"iou.png", "confusion.png", "worst.png"}


def test_masks_with_classes_in_another_order_are_refused(segmenter):
    names = ("bright", "background", "dark")
    with pytest.raises(ValueError, match="Received: .'background', 'bright'. at other positions"):
        evaluation.evaluate(segmenter, ["segmentation"], get_inputs("scenes"), class_names=names)


def test_damaged_mask_is_refused_by_name(segmenter):
    inputs = get_inputs("scenes")

    def read(index):
        return {**inputs.test.read(index), "mask": tf.constant(b"no mask")}

    test = dataclasses.replace(inputs.test, read=read)
    with pytest.raises(ValueError, match=r"must be a PNG file.* in example \d"):
        evaluation.evaluate(segmenter, ["segmentation"], dataclasses.replace(inputs, test=test))


@pytest.mark.parametrize(
    "evaluator, source, message",
    [
        ("top1", "scenes", "evaluators of models of pixels"),
        ("segmentation", "rooms", "Segmentation needs data with masks"),
        ("depth", "scenes", "Depth needs data with depths"),
    ],
)
def test_unsuitable_evaluators_are_refused(evaluator, source, message, segmenter):
    with pytest.raises(ValueError, match=message):
        evaluation.evaluate(segmenter, [evaluator], get_inputs(source))


def test_depth_evaluator():
    images = keras.Input((8, 8, 3))
    model = keras.Model(images, (images[..., 0] + 1) * 2)
    scores = evaluation.evaluate(model, ["depth"], get_inputs("rooms"))
    assert scores["depth/delta1"] == 1 and scores["depth/rms_error"] < 1e-6
    with pytest.raises(ValueError, match="a depth with known pixels"):
        evaluation.evaluate(model, ["depth"], get_inputs("rooms", is_known=False))
