"""Tests of the tasks segmentation and depth: scores, losses, runs and evaluation by image."""

import dataclasses
import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops
from ml_collections import ConfigDict

from keras_vit import data, evaluation, recipes, tasks
from keras_vit.data.targets.pixels import reader
from keras_vit.evaluation import dense
from keras_vit.preprocessing import Preprocessing
from keras_vit.tasks.dense import depth_scores
from keras_vit.training.engine import weighted_means

from ..shared import GOLDEN, SIZES

SPEC = importlib.util.spec_from_file_location(
    "small_run", Path(__file__).parent.parent / "training" / "small_run.py"
)
small_run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(small_run)

MODEL = {**SIZES, "num_layers": 4}
DPT = {"head": "dpt", "features": 4, "level_channels": (4, 4, 4, 4)}
NAMES = ("background", "bright", "brightest")


def scenes(split):
    """Returns the digits with masks by brightness, whose first column is ignored."""
    digits = data.load_split("digits", split)
    ops_of = digits.read

    def read(index):
        image = ops_of(index)["image"]
        level = ops.cast(image[..., 0] // 6, "int32")
        columns = ops.arange(8, dtype="int32")[None]
        return {"image": image, "mask": ops.where(columns == 0, 255, level)}

    return dataclasses.replace(digits, read=read, class_names=NAMES, labels=None, target="masks")


def rooms(split):
    """Returns the digits with depths; the depth of black pixels is unknown."""
    digits = data.load_split("digits", split)
    images = digits.read
    read = lambda index: {  # noqa: E731
        "image": images(index)["image"],
        "depth": ops.cast(images(index)["image"][..., 0], "float32") / 4,
    }
    return dataclasses.replace(digits, read=read, class_names=(), labels=None, target="depth")


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    monkeypatch.setitem(data.SOURCES, "scenes", scenes)
    monkeypatch.setitem(data.SOURCES, "rooms", rooms)


def config_of(task="segmentation", **model):
    return ConfigDict(
        recipes.defaults(
            task=task,
            model={**MODEL, "head": "linear" if task == "segmentation" else "dpt", **model},
            data=data.defaults(name="scenes" if task == "segmentation" else "rooms"),
        )
    )


def test_mean_iou_equals_the_golden_case():
    golden = np.load(GOLDEN / "dense" / "miou.npz")
    classes = len(golden["iou"])
    task = tasks.Segmentation(config_of())
    task.class_names = tuple(map(str, range(classes)))
    labels = golden["target"].reshape(-1, *golden["target"].shape[-2:])
    logits = np.eye(classes, dtype="float32")[golden["prediction"].reshape(labels.shape)]
    model = lambda images, training: images  # noqa: E731
    sums = []
    for part in np.array_split(np.arange(len(labels)), 2):  # the sum over batches is divided once
        batch = logits[part], labels[part].astype("uint8"), np.ones(len(part), "float32")
        values = task.evaluate(model, batch)
        sums.append(({name: ops.sum(value) for name, value in values.items()}, len(part)))
    results = task.results(weighted_means(sums, len(labels)))
    assert results["mean_iou"] == golden["miou"]
    assert results["pixel_accuracy"] == golden["pixel_accuracy"]
    ious = [results[f"iou/{label}"] for label in range(classes)]
    np.testing.assert_array_equal(ious, golden["iou"])
    # The evaluators count the same pixels.
    matrix = sum(dense.confusion(*pair, classes) for pair in zip(logits, labels.astype(np.int64)))
    scores, of_classes = dense.scores_of(matrix)
    assert scores == {name: results[name] for name in scores}
    np.testing.assert_array_equal(of_classes, golden["iou"])


def test_losses_of_an_image_are_means_over_its_labeled_pixels():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 4, 6, 3)).astype("float32")
    labels = random.integers(0, 3, (2, 4, 6)).astype("uint8")
    labels[0, :2] = 255
    labels[1] = 255
    task = tasks.Segmentation(config_of())
    losses, metrics = task.losses_and_metrics(
        lambda images, training: images, (ops.convert_to_tensor(logits), labels, None)
    )
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    of_label = np.take_along_axis(shares, np.minimum(labels, 2)[..., None].astype(int), -1)[..., 0]
    expected = -np.log(of_label[0, 2:]).mean()
    np.testing.assert_allclose(losses, [expected, 0], rtol=1e-5)
    right = (logits.argmax(-1) == labels)[0, 2:].mean()
    np.testing.assert_allclose(metrics["pixel_accuracy"], [right, 0], rtol=1e-6)


def test_scores_of_depth():
    random = np.random.default_rng(0)
    targets = random.uniform(1, 5, (2, 3, 4)).astype("float32")
    depths = targets * random.uniform(0.7, 1.4, targets.shape).astype("float32")
    depths[0, 0] = 9
    targets[0, 0] = 0  # unknown
    losses, metrics = depth_scores(depths, ops.convert_to_tensor(targets))
    for row in range(2):
        known = targets[row] > 0
        d, t = depths[row][known].astype("float64"), targets[row][known].astype("float64")
        logs = np.log(d) - np.log(t)
        expected = {
            "abs_rel_error": np.mean(np.abs(d - t) / t),
            "rms_error": np.sqrt(np.mean((d - t) ** 2)),
            "delta1": np.mean(np.maximum(d / t, t / d) < 1.25),
        }
        np.testing.assert_allclose(losses[row], np.mean(logs**2) - np.mean(logs) ** 2 / 2, 1e-4)
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name][row], value, rtol=1e-5)
    scaled, _ = depth_scores(2 * depths, ops.convert_to_tensor(2 * targets))
    np.testing.assert_allclose(scaled, losses, rtol=1e-4)  # both have another unit


@pytest.mark.parametrize(
    ("task", "head"), [("segmentation", "linear"), ("segmentation", "dpt"), ("depth", "dpt")]
)
def test_frozen_backbones_train_only_the_head(task, head):
    config = config_of(task, **(DPT if head == "dpt" else {}))
    inputs = data.from_config(config.data, batch_size=4, seed=0)
    assert inputs.target == ("masks" if task == "segmentation" else "depth")
    model = tasks.get(config).make_model(inputs)
    trained = [variable.path for variable in model.trainable_variables]
    assert trained == [variable.path for variable in model.head.trainable_variables] != []
    config.model.frozen = False
    unfrozen = tasks.get(config).make_model(inputs)
    assert len(unfrozen.trainable_variables) > len(trained)
    batch = next(iter(inputs.train_batches()))
    outputs = tasks.get(config).outputs(model, batch, training=False)
    assert outputs.shape == (4, 8, 8, 3 if task == "segmentation" else 1)


def test_what_dense_tasks_cannot_do_is_refused():
    for field, value in (("loss", "sigmoid"), ("patch_sizes", (2, 4))):
        config = config_of()
        config[field] = value
        with pytest.raises(ValueError, match=f"config.{field}` must be"):
            tasks.get(config)
    with pytest.raises(ValueError, match="head` must be one of linear, dpt"):
        tasks.get(config_of(head="unet"))
    with pytest.raises(ValueError, match="head linear has no `config.model.features`"):
        tasks.get(config_of(features=64))
    with pytest.raises(ValueError, match="head` must be dpt for depth"):
        tasks.get(config_of("depth", head="linear"))
    config = config_of()
    config.architecture = "BiTResNet"
    config.model = {"depth": 8, "head": "linear"}
    with pytest.raises(ValueError, match="architecture` must be a VisionTransformer"):
        tasks.get(config)


def run(kind, workdir, write=lambda line: None, task="segmentation", **changes):
    fields = {
        "task": task,
        "best_metric": "mean_iou" if task == "segmentation" else "abs_rel_error",
        "data": data.defaults(name="scenes" if task == "segmentation" else "rooms", shift=1),
        "model": {**MODEL, "dropout": 0.1, "frozen": False, **DPT},
        **changes,
    }
    return small_run.start(kind, workdir, write, **fields)


def test_a_config_for_a_folder_finds_its_masks(tmp_path):
    path = Path(recipes.__file__).parents[1] / "configs" / "segment.py"
    spec = importlib.util.spec_from_file_location("segment", path)
    segment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(segment)
    config = segment.get_config(f"DINOv2-S/14,{tmp_path},head=dpt,resolution=56")
    assert (config.data.name, config.data.path) == ("masks", str(tmp_path))
    assert (config.data.image_size, config.best_metric) == (56, "mean_iou")
    assert (config.model.head, config.model.patch_size) == ("dpt", 14)
    depth = segment.get_config("DINOv2-S/14,folder,task=depth")
    assert (depth.task, depth.data.name, depth.model.head) == ("depth", "depth", "dpt")
    with pytest.raises(ValueError, match="choices head=linear or dpt"):
        segment.get_config("DINOv2-S/14,folder,epochs=3")


@pytest.mark.full
@pytest.mark.parametrize("task", ["segmentation", "depth"])
def test_resume_is_bit_exact(task, tmp_path):
    write = small_run.writer(
        tmp_path / "whole", "after step 5", tmp_path / "stopped", lambda line: None
    )
    fields = {"task": task, "batch_size": 32}
    whole = run("alone", tmp_path / "whole", write, **fields)
    lines = []
    resumed = run("alone", tmp_path / "stopped", lines.append, **fields)
    assert any(line.startswith("resuming from step 5,") for line in lines)
    for ours, theirs in zip(resumed.model.get_weights(), whole.model.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    for name in ("metrics.csv", "evaluations.csv"):
        assert (tmp_path / "stopped" / name).read_text() == (tmp_path / "whole" / name).read_text()
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
    assert dense._starts(8, 8) == [0]
    resized = dense.predict_pixels(model, image, preprocessing)
    assert resized.shape == (8, 21, 3) and not np.allclose(resized, image, atol=1)


class Brightness(keras.layers.Layer):
    """Returns logits for the classes of `scenes`."""

    def call(self, images):
        level = 8 * (images[..., :1] + 1) / 6 - 0.45
        return -ops.square(level - ops.convert_to_tensor([0.0, 1.0, 2.0]))


def test_evaluators_and_report(tmp_path):
    inputs = data.from_config({"name": "scenes", "test_split": "test[:5]"}, batch_size=4, seed=0)
    images = keras.Input((8, 8, 3))
    model = keras.Model(images, Brightness()(images))
    results = evaluation.evaluate(model, ["segmentation", "segmentation_windows"], inputs)
    for name in ("segmentation", "segmentation_windows"):
        assert results[f"{name}/mean_iou"] == results[f"{name}/pixel_accuracy"] == 1
        assert results[f"{name}/iou/bright"] == 1
    image, white, values, weight, is_valid = reader(inputs.test_target)(0)
    assert (white, weight, is_valid) == (240, 1, True) and values.shape == image.shape[:2]
    page = evaluation.REPORTS["masks"](model, inputs, tmp_path)
    assert "mean IoU 1.0000" in page.read_text()
    assert {path.name for path in tmp_path.glob("*.png")} == {
        *("iou.png", "confusion.png", "worst.png"),
    }
    with pytest.raises(ValueError, match="evaluators of models of pixels are segmentation"):
        evaluation.get(["top1"])["top1"].check(model, inputs)
    with pytest.raises(ValueError, match="Depth needs data with depths"):
        evaluation.evaluate(model, ["depth"], inputs)
    rooms = data.from_config({"name": "rooms", "test_split": "test[:5]"}, batch_size=4, seed=0)
    depths = keras.Model(images, (images[..., 0] + 1) * 2)
    scores = evaluation.evaluate(depths, ["depth"], rooms)
    assert scores["depth/delta1"] == 1 and scores["depth/rms_error"] < 1e-6
    known = rooms.test.read
    unknown = lambda index: {**known(index), "depth": ops.zeros((8, 8))}  # noqa: E731
    dark = dataclasses.replace(rooms, test=dataclasses.replace(rooms.test, read=unknown))
    with pytest.raises(ValueError, match="have a depth with known pixels.*5 images"):
        evaluation.evaluate(depths, ["depth"], dark)
    with pytest.raises(ValueError, match="Segmentation needs data with masks"):
        evaluation.evaluate(model, ["segmentation"], rooms)
