"""Tests of fine-tuning on the tasks of VTAB-1k. The digits dataset replaces the datasets of the
tasks."""

import types

import keras
import numpy as np
import pytest
import vtab_tasks as vtab

from ..shared import SIZES

if keras.backend.backend() != "tensorflow":
    pytest.skip("fine-tuning is tested on TensorFlow only", allow_module_level=True)

import keras_vit
from keras_vit import data
from keras_vit.checkpoints import find_preprocessing

MODEL = {**SIZES, "input_shape": (8, 8, 3), "classes": 5}


def _to_digits(config):
    config.update({"total_steps": 3, "batch_size": 16, "log_every_steps": 3})
    config.schedule.warmup_steps = 1
    config.data = data.defaults(name="digits")


def test_tasks_and_recipe_match_the_paper():
    assert len(vtab.TASKS) == 19
    assert {f"vtab/{task}" for task in vtab.TASKS} == {
        name for name in data.DATASETS if name.startswith("vtab/")
    }
    model = keras_vit.VisionTransformer(
        **MODEL | {"patch_size": 2, "resnet_blocks": ()}, classifier="gap"
    )
    config = vtab.config_of(model, "clevr_count", weights="w.npz", path="/data")
    assert (config.total_steps, config.batch_size, config.schedule.base) == (2500, 512, 0.01)
    expected = {"image_size": 384, "path": "/data", "train_crop": "auto", "train_split": "train"}
    assert expected.items() <= config.data.to_dict().items()
    assert config.weights == "w.npz"
    expected = {"classifier": "gap", "resnet_blocks": (), "stem": "resnet"}
    assert expected.items() <= config.model.to_dict().items()


@pytest.mark.slow
def test_run_skips_finished_tasks_and_rejects_other_weights(tmp_path):
    model = keras_vit.VisionTransformer(**MODEL)
    lines = []
    tasks = ("svhn", "eurosat")
    options = {"edit": _to_digits, "write": lines.append}
    first = vtab.run_tasks(model, tmp_path, tasks=tasks[:1], **options)
    assert set(first) == {"svhn", "mean"}
    lines.clear()
    both = vtab.run_tasks(model, tmp_path, tasks=tasks, **options)
    assert both["svhn"] == first["svhn"]
    assert "task 2 of 2: eurosat" in lines
    assert not any(line.startswith("task 1") for line in lines)
    assert both["mean"] == pytest.approx((both["svhn"] + both["eurosat"]) / 2)
    model.get_layer("head").bias.assign(np.ones(5))
    with pytest.raises(ValueError, match="other weights"):
        vtab.run_tasks(model, tmp_path, tasks=tasks, **options)


def test_means_omit_incomplete_groups():
    metrics = {task: float(number) for number, task in enumerate(vtab.TASKS)}
    means = vtab._means(metrics)
    assert means == {"natural": 3.0, "specialized": 8.5, "structured": 14.5, "mean": 9.0}
    del metrics["kitti"]
    assert set(vtab._means(metrics)) == {"natural", "specialized", "mean"}


def test_rejects_unknown_task_and_wrapped_model(tmp_path):
    model = keras_vit.VisionTransformer(**MODEL)
    wrapped = keras.Sequential([keras.Input((8, 8, 3)), model])
    with pytest.raises(ValueError, match="Received: tasks=.'mnist'"):
        vtab.run_tasks(model, tmp_path, tasks=("mnist",))
    with pytest.raises(ValueError, match="must be a `VisionTransformer`"):
        vtab.config_of(wrapped, "svhn", weights="")
    assert not list(tmp_path.iterdir())


def test_missing_dataset_is_an_error_before_training(monkeypatch, tmp_path):
    trained = []
    monkeypatch.setattr(vtab.training, "run", lambda config, *_, **__: trained.append(config))

    def edit(config):
        if config.recipe.startswith("VTAB-1k, svhn"):
            _to_digits(config)

    model = keras_vit.VisionTransformer(**MODEL)
    options = {"path": str(tmp_path / "nowhere"), "tasks": ("svhn", "eurosat"), "edit": edit}
    with pytest.raises(ValueError, match="The task eurosat cannot load its dataset;.*--data_path"):
        vtab.run_tasks(model, tmp_path, **options)
    assert not trained


def test_moved_folder_keeps_normalization_of_model(monkeypatch, tmp_path):
    trained = []

    def run(config, folder, *_, **__):
        trained.append(find_preprocessing(config.weights).mean)
        folder.claim()
        return types.SimpleNamespace(metrics={"test/accuracy": 0.5})

    monkeypatch.setattr(vtab.training, "run", run)
    model = keras_vit.VisionTransformer(
        **MODEL, preprocessing=keras_vit.Preprocessing(mean=(9,) * 3, std=(5,) * 3)
    )
    options = {"edit": _to_digits, "write": lambda line: None}
    keras.config.set_dtype_policy("mixed_bfloat16")
    vtab.run_tasks(model, tmp_path / "old", tasks=("svhn",), **options)
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    (tmp_path / "old").rename(tmp_path / "new")
    metrics = vtab.run_tasks(model, tmp_path / "new", tasks=("svhn", "eurosat"), **options)
    assert metrics["mean"] == 0.5
    assert trained == [(9, 9, 9)] * 2
