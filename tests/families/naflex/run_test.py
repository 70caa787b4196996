"""Tests of the data pipeline, training, evaluation and exports of NaFlex models."""

import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
from keras_vit import data, evaluation, export, families, recipes, tasks, training
from keras_vit.configs import small_data

from ...shared import randomize_head, to_numpy
from .pictures import write_photos

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="exports require the TensorFlow backend"
)


@pytest.fixture
def photos(tmp_path):
    """Returns a folder with images of two classes."""
    write_photos(tmp_path / "photos")
    return tmp_path / "photos"


def run_config(photos, weights="", **fields):
    """Returns the config of a short run on a folder of images. `fields` change its data."""
    sizes = {"patch_size": 8, "num_layers": 3, "hidden_size": 24, "mlp_dim": 44, "num_heads": 3}
    fields = {"max_patches": 16, "patch_size": 8, **fields}
    return ConfigDict(
        recipes.defaults(
            **families.model_config("NaFlexVisionTransformer", **sizes),
            weights=str(weights),
            batch_size=6,
            total_steps=12,
            log_every_steps=12,
            data=data.defaults(name="folder", path=str(photos), test_share=0.25, **fields),
            optimizer={"name": "adamw"},
            schedule={"base": 3e-3, "warmup_steps": 1},
        )
    )


def get_inputs(config):
    return data.from_config(config.data, batch_size=config.batch_size, seed=config.seed)


@pytest.mark.one_backend
@pytest.mark.full
def test_data_pipeline_makes_naflex_batches(photos):
    inputs = get_inputs(run_config(photos, augreg="light1"))
    assert inputs.image_shape == (16, 66, 3)
    assert inputs.model_preprocessing().resize == "naflex"
    for batches in (inputs.train_batches(), inputs.eval_batches()):
        images, *_ = next(iter(batches))
        assert images.shape[1:] == inputs.image_shape
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
    assert (blank[0, -2:] == 1).all()  # the position of the only patch
    assert not blank[0, :-2].any()
    assert not blank[1:].any()


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
    fields = small_data.get_config("SigLIP2-NaFlex-B/16,folder").data
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
    model = result.model
    assert model.input_shape == (None, 16, 66, 3)
    assert model.output_shape == (None, 2)
    assert result.metrics["test/accuracy"] == 1
    metrics = evaluation.evaluate(model, ["top1", "knn"], result.inputs)
    assert np.isfinite(list(metrics.values())).all()
    inputs = evaluation.load_inputs(model, "folder", str(photos), splits=("",), batch_size=6)
    assert inputs.image_shape == (16, 66, 3)


@tensorflow_only
@pytest.mark.full
def test_saved_model_agrees_with_the_model(folder, pictures, tmp_path):
    import tensorflow as tf

    classifier = keras_vit.from_pretrained(folder, head="new", include_top=True, classes=4)
    randomize_head(classifier)
    signatures = ("serving_default", "tensor", "features")
    version = export.saved_model(classifier, tmp_path, signatures=signatures)
    readme = Path(version, "README.md").read_text()
    assert "\n- images of any size, as up to 16 patches\n" in readme
    served = tf.saved_model.load(version).signatures
    images = pictures[:4]
    files = tf.constant([tf.io.encode_png(image).numpy() for image in images])
    batch = keras_vit.preprocess_input(images, classifier)
    expected = to_numpy(keras.ops.softmax(classifier(batch)))
    from_files = served["serving_default"](image_bytes=files)["probabilities"]
    np.testing.assert_allclose(from_files, expected, atol=1e-5)
    from_batch = served["tensor"](images=batch)["probabilities"]
    np.testing.assert_allclose(from_batch, expected, atol=1e-5)
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
    assert check.compiles
    assert not check.error
    assert check.model_flops > 0
