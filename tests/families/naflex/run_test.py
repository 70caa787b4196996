"""Tests of the data pipeline, training, evaluation and exports of NaFlex models."""

import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, evaluation, export, families, tasks, training

from ...shared import assert_close, get_config, randomize_head
from ...training import small_run

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="exports require the TensorFlow backend"
)


@pytest.fixture
def photos(tmp_path):
    """Returns a folder with twelve dark images of class "a" and twelve bright ones of class "b",
    all of different aspect ratios."""
    folder = tmp_path / "photos"
    for name, brightness in (("a", 0), ("b", 200)):
        (folder / name).mkdir(parents=True)
        for i in range(12):
            pixels = np.full((20 + 5 * i, 70 - 4 * i, 3), brightness + i)
            keras.utils.save_img(folder / name / f"{i}.png", pixels, scale=False)
    return folder


def run_config(photos, weights="", **fields):
    """Returns the config of a short run on a folder of images. `fields` change its data."""
    sizes = {"patch_size": 8, "num_layers": 3, "hidden_size": 24, "mlp_dim": 44, "num_heads": 3}
    fields = {"max_patches": 16, "patch_size": 8, **fields}
    return small_run.config_of(
        **families.model_config("NaFlexVisionTransformer", **sizes),
        weights=str(weights),
        batch_size=6,
        data=data.defaults(name="folder", path=str(photos), test_share=0.25, **fields),
    )


def get_inputs(config):
    return data.from_config(config.data, batch_size=config.batch_size, seed=config.seed)


@pytest.mark.one_backend
@pytest.mark.full
def test_data_pipeline_makes_naflex_batches(photos):
    inputs = get_inputs(run_config(photos, augreg="light1"))
    assert inputs.image_shape == (16, 66, 3)
    for batches in (inputs.train_batches(), inputs.eval_batches()):
        images, *_ = next(iter(batches))
        # The last two columns contain the row and the column of each patch, which start at 1.
        positions = images.numpy()[:, :, -2:, 0]
        np.testing.assert_array_equal(positions[:, 0], 1)
        assert positions.max() > 4  # a grid that is not 4x4


@pytest.mark.one_backend
@pytest.mark.full
def test_unreadable_image_becomes_one_blank_patch(photos):
    (photos / "a" / "0.png").write_bytes(b"no image")
    source = data.load_split("folder", "", path=str(photos))
    batches = data.eval_batches(source, batch_size=24, max_patches=16, patch_size=8)
    images, labels, weights = (part.numpy() for part in next(iter(batches)))
    assert weights.sum() == 23
    assert not labels[weights == 0].any()
    (blank,) = images[weights == 0]
    expected = np.zeros_like(blank)
    expected[0, -2:] = 1  # the position of the only patch
    np.testing.assert_array_equal(blank, expected)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "field, value",
    [("mixup_alpha", 0.2), ("image_size", 32), ("train_crop", "none")],
)
def test_rejects_data_options_for_one_image_size(field, value, photos):
    config = run_config(photos)
    config.data[field] = value
    with pytest.raises(ValueError, match=f"`max_patches` .NaFlex.*{field}="):
        get_inputs(config)


@pytest.mark.one_backend
def test_config_file_sets_max_patches():
    fields = get_config("small_data", "SigLIP2-NaFlex-B/16,folder").data
    assert (fields.max_patches, fields.patch_size, fields.image_size) == (256, 16, 0)


@pytest.mark.one_backend
def test_model_requires_naflex_batches(photos):
    config = run_config(photos, max_patches=0, image_size=32)
    with pytest.raises(ValueError, match="max_patches=256"):
        tasks.get(config).build_model(get_inputs(config))


@pytest.mark.full
def test_classifier_trains_and_evaluates(folder, photos, tmp_path):
    config = run_config(photos, folder)
    workdir = training.Workdir(tmp_path / "run", config.to_dict())
    result = training.run(config, workdir, write=lambda line: None)
    assert result.metrics["test/accuracy"] == 1
    inputs = evaluation.load_inputs(result.model, "folder", str(photos), splits=("",))
    metrics = evaluation.evaluate(result.model, ["top1", "knn"], inputs)
    assert metrics["top1/accuracy"] == metrics["knn/accuracy"] == 1


@tensorflow_only
@pytest.mark.full
def test_saved_model_agrees_with_the_model(folder, pictures, tmp_path):
    import tensorflow as tf

    classifier = keras_vit.from_pretrained(folder, head="new", include_top=True, classes=4)
    randomize_head(classifier)
    signatures = ("serving_default", "tensor", "features")
    version = export.saved_model(classifier, tmp_path, signatures=signatures)
    assert "images of any size, as up to 16 patches" in Path(version, "README.md").read_text()
    served = tf.saved_model.load(version).signatures
    images = pictures[:4]
    files = tf.constant([tf.io.encode_png(image).numpy() for image in images])
    batch = keras_vit.preprocess_input(images, classifier)
    expected = keras.ops.softmax(classifier(batch))
    assert_close(served["serving_default"](image_bytes=files)["probabilities"], expected)
    assert_close(served["tensor"](images=batch)["probabilities"], expected)
    assert served["features"](image_bytes=files)["patches"].shape == (4, 16, 24)


@tensorflow_only
@pytest.mark.full
def test_other_formats_and_attention_are_refused(folder, tmp_path):
    classifier = keras_vit.from_pretrained(folder, head="new", include_top=True, classes=4)
    for write, file in ((export.litert, "model.tflite"), (export.onnx, "model.onnx")):
        with pytest.raises(ValueError, match="only be exported as a SavedModel"):
            write(classifier, tmp_path / file)
    with pytest.raises(ValueError, match="its own patch grid"):
        export.check(classifier, signatures=("attention",))


@pytest.mark.full
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no libtpu: pip install -e '.[cpu,aot]'"
)
def test_tpu_check_compiles_a_step(folder, photos):
    from keras_vit import tpu

    config = run_config(photos, folder)
    check = tpu.check(tasks.get(config), config, 32, "v3:2x2")
    assert check.compiles and check.model_flops > 0
