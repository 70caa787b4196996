"""Tests of SigLIP 2 NaFlex. Batches and outputs are compared with transformers."""

import importlib.util
import itertools
import shutil

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
from keras_vit import (
    checkpoints,
    data,
    evaluation,
    families,
    inspection,
    naflex,
    recipes,
    tasks,
    training,
)
from keras_vit.configs import small_data
from keras_vit.layers import attention

from ..shared import FAMILY_FILES, SIZES, assert_close, randomize_head, read_arrays

MEAN = [127.5] * 3
tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="exports require the TensorFlow backend"
)


def picture(number, height, width):
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    values = 37 * number + (3 + c) * y + (5 - c) * x + (x * y) // (3 + number)
    return np.uint8(values % 256 // (1 + (x + y) % 2))


@pytest.fixture(scope="module")
def images():
    """Returns image sizes, and the patch grids and pixels that `Siglip2ImageProcessor` returned for
    them."""
    return read_arrays(FAMILY_FILES / "naflex_images.npz")


@pytest.fixture(scope="module")
def pictures(images):
    return [picture(i, *size) for i, size in enumerate(images["sizes"].tolist())]


@pytest.fixture(scope="module")
def reference():
    return read_arrays(FAMILY_FILES / "siglip2_naflex.io.npz")


@pytest.fixture(scope="module")
def batch(reference):
    return naflex.pack(reference["images"], reference["spatial_shapes"], reference["mask"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("naflex")
    shutil.copy(FAMILY_FILES / "siglip2_naflex.safetensors", path / "model.safetensors")
    shutil.copy(FAMILY_FILES / "siglip2_naflex.config.json", path / "config.json")
    return path


@pytest.fixture(scope="module")
def model(folder):
    return keras_vit.from_pretrained(folder)


# Batches


@pytest.mark.one_backend
@pytest.mark.parametrize("budget", [64, 256, 1024])
def test_photo_grids_match_reference(images, budget):
    sizes = images["photo_sizes"].astype("float64")
    grids = naflex.target_grid(sizes[:, 0], sizes[:, 1], 16, budget)
    np.testing.assert_array_equal(np.stack(grids, 1), images[f"photo_grids_{budget}"])


@pytest.mark.one_backend
@pytest.mark.parametrize("budget", [16, 49, 100])
def test_batches_match_reference(images, pictures, budget):

    expected = naflex.pack(images[f"pixels_{budget}"] / 127.5 - 1, images[f"grids_{budget}"])
    result = naflex.preprocess(pictures, MEAN, MEAN, patch_size=4, max_patches=budget)
    np.testing.assert_array_equal(result[:, :, -2:], expected[:, :, -2:])
    assert np.abs(result - expected).max() / 2 < 1.001 / 255  # the reference rounds to 8 bits
    preprocessing = keras_vit.Preprocessing(resize="naflex")
    shape = naflex.batch_shape(budget, 4)
    tf_images = [
        data.inputs.kind_for(preprocessing).evaluation_image(image, shape, preprocessing)
        for image in pictures
    ]
    np.testing.assert_allclose(tf_images, result, atol=1e-5)


@pytest.mark.one_backend
def test_pack_rejects_invalid_arrays(reference):
    patches, shapes, mask = (reference[name] for name in ("images", "spatial_shapes", "mask"))
    with pytest.raises(ValueError, match="`mask` must be 1 for the first rows.* Received: "):
        naflex.pack(patches, shapes, 0 * mask)
    with pytest.raises(ValueError, match="`mask` must be 1 for the first"):
        naflex.pack(patches, shapes, mask[:, ::-1])
    with pytest.raises(ValueError, match="must have 1 to 16 patches per image. Received: "):
        naflex.pack(patches, 9 * shapes)
    with pytest.raises(ValueError, match="`patches` must be .* Received: patches of shape"):
        naflex.pack(patches[0], shapes)
    with pytest.raises(ValueError, match="`max_patches` must be .* Received: max_patches=0"):
        naflex.preprocess([picture(0, 8, 8)], MEAN, MEAN, 4, 0)
    with pytest.raises(ValueError, match="`patches` must be .* Received: patches of shape"):
        # 99 values are 33 RGB pixels, which cannot form a square.
        naflex.pack(np.zeros((2, 16, 99)), shapes[:2])
    for images in ([], [np.zeros((8, 8))], [np.zeros((8, 8, 1))], [np.zeros((0, 8, 3))]):
        with pytest.raises(
            ValueError, match="must be a list of one or more images .* Received: images of shapes"
        ):
            naflex.preprocess(images, MEAN, MEAN, 4, 9)


# Model


def test_outputs_match_reference(model, batch, reference):
    mask = reference["mask"][..., None]
    expected = reference["last_hidden_state"] * mask
    assert_close(model.intermediates(batch)["encoded"], expected)  # padding is zero
    assert_close(keras_vit.features(model, batch, tokens="patch"), expected)
    assert_close(model(batch), reference["pooler_output"])
    assert_close(keras_vit.features(model, batch, tokens="pooled"), reference["pooler_output"])


def test_larger_max_patches_gives_the_same_outputs(folder, reference):
    model = keras_vit.from_pretrained(folder, max_patches=40)
    padded = np.pad(reference["images"], ((0, 0), (0, 24), (0, 0)))
    assert_close(
        model(naflex.pack(padded, reference["spatial_shapes"])), reference["pooler_output"]
    )


@pytest.mark.parametrize("long", [1024, 4])
def test_padding_is_masked_and_stays_zero(long, monkeypatch):
    monkeypatch.setattr(attention, "LONG_SEQUENCE", long)  # JAX splits longer sequences into chunks
    tokens = np.random.default_rng(0).normal(size=(2, 7, 8)).astype("float32")
    padded = np.pad(tokens, ((0, 0), (0, 3), (0, 0)))
    block = keras_vit.TransformerBlock(2, 12, masked=True)
    result = keras.ops.convert_to_numpy(block(padded))
    assert not result[:, 7:].any()
    assert_close(result[:, :7], keras.ops.convert_to_numpy(block(tokens)))
    pooling = keras_vit.AttentionPooling(2, 12, masked=True)
    assert_close(pooling(padded), keras.ops.convert_to_numpy(pooling(tokens)))


def test_naflex_model_is_restored_from_files(model, batch, tmp_path):
    model.save(tmp_path / "model.keras")
    checkpoints.save(model, tmp_path / "model.npz")
    expected = keras.ops.convert_to_numpy(model(batch))
    for again in (
        keras_vit.load_keras_file(tmp_path / "model.keras"),
        keras_vit.from_pretrained(tmp_path / "model.npz"),
    ):
        assert again.preprocessing.resize == "naflex"
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(again(batch)), expected)
    with pytest.raises(ValueError, match="no class of the library"):
        checkpoints.save(model, tmp_path / "folder", format="huggingface")


@pytest.mark.one_backend
def test_loads_big_vision_files(folder, model, batch, tmp_path):
    checkpoints.save(model, tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as file:
        arrays = {f"params/img/{name}": array for name, array in file.items()}
    kernel = "params/img/embedding/kernel"
    positions = "params/img/Transformer/posembed_input/pos_embedding"
    arrays[kernel] = arrays[kernel].reshape(-1, 24)
    arrays["params/img/pos_embedding"] = arrays.pop(positions).reshape(4, 4, 24)
    np.savez(tmp_path / "naflex.npz", **arrays)
    again = keras_vit.from_pretrained(f"{tmp_path}/naflex.npz:img", num_heads=3, max_patches=16)
    assert_close(again(batch), keras.ops.convert_to_numpy(model(batch)))
    assert again.preprocessing.resize == "naflex"


def test_patch_positions_above_256_are_exact_in_bfloat16(folder):
    model = keras_vit.from_pretrained(folder, max_patches=300, dtype="mixed_bfloat16")
    batch = keras_vit.preprocess_input([np.zeros((8, 2400, 3), "uint8")], model)
    _, places = model.get_layer("patches")(model.input_preprocessing(batch))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(places)[0, :, 1], np.arange(1, 301))
    assert np.isfinite(keras.ops.convert_to_numpy(keras.ops.cast(model(batch), "float32"))).all()


def fixed_model(folder):
    """Returns a `VisionTransformer` with the weights of the NaFlex model."""
    _, arguments = checkpoints.infer_architecture(folder)
    model = keras_vit.VisionTransformer(
        **{n: v for n, v in arguments.items() if n != "max_patches"}
    )
    checkpoints.load(model, folder)
    return model


def test_fixed_size_model_loads_naflex_weights(folder):
    fixed = fixed_model(folder)
    assert fixed.input_shape == (None, 32, 32, 3) and fixed.preprocessing.resize == "stretch"
    model = keras_vit.from_pretrained(folder)
    images = np.stack([picture(i, 32, 32) for i in range(2)])
    batch = keras_vit.preprocess_input(list(images), model)
    expected = keras.ops.convert_to_numpy(fixed(keras_vit.preprocess_input(images, fixed)))
    assert_close(model(batch), expected)


def test_rejects_mismatched_input(model, folder, batch):
    images = np.zeros((2, 32, 32, 3), "float32")
    fixed = fixed_model(folder)
    for call in (model, lambda images: keras_vit.features(model, images, tokens="pooled")):
        with pytest.raises(ValueError, match="of 16 patches takes .*preprocess_input"):
            call(images)
    with pytest.raises(ValueError, match="incompatible"):
        fixed(batch)
    with pytest.raises(ValueError, match="must have shape .B, 32, 32, 3"):
        keras_vit.features(fixed, batch, tokens="pooled")
    with pytest.raises(ValueError, match="takes images of one size. Received: shapes="):
        keras_vit.preprocess_input([picture(0, 8, 9), picture(0, 9, 8)], fixed)
    with pytest.raises(ValueError, match="must have pixel values.* Received: "):
        keras_vit.preprocess_input([np.full((8, 9, 3), -1.0)], model)
    for images in (["a.jpg"], np.zeros((8, 9, 3), "uint8"), []):
        with pytest.raises(ValueError, match="one or more images .*: images of shapes"):
            keras_vit.preprocess_input(images, model)
    with pytest.raises(ValueError, match="image of the batch has no patches"):
        model(0 * batch)
    with pytest.raises(ValueError, match="classifier=.map.* Received: classifier='gap'"):
        keras_vit.from_pretrained(folder, classifier="gap")
    with pytest.raises(ValueError, match="has its own patch grid.* Received: model="):
        keras_vit.features(model, batch, tokens="patch", grid=True)


@pytest.mark.parametrize("method", ["rollout", "mean", "relevance"])
def test_attention_maps_support_any_aspect_ratio(method, model, folder):
    pictures = [picture(i, *size) for i, size in enumerate([(32, 32), (16, 64), (96, 8)])]
    batch = keras_vit.preprocess_input(pictures, model)
    grids = [(4, 4), (2, 8), (12, 1)]
    maps = inspection.attention_maps(model, batch, method=method, upsample=False)
    assert maps.shape == (3, 12, 8)
    for i, (rows, columns) in enumerate(grids):
        alone = inspection.attention_maps(model, batch[i : i + 1], method=method, upsample=False)
        np.testing.assert_allclose(maps[i, :rows, :columns], alone[0], rtol=1e-4, atol=1e-6)
        assert maps[i].sum() == pytest.approx(alone.sum(), rel=1e-4)
    fixed = fixed_model(folder)
    images = keras_vit.preprocess_input(np.stack(pictures[:1]), fixed)
    expected = inspection.attention_maps(fixed, images, method=method)
    result = inspection.attention_maps(model, batch, method=method)
    np.testing.assert_allclose(result[0, :32, :32], expected[0], rtol=1e-3, atol=1e-5)
    assert result.shape == (3, 96, 64) and not result[0, 32:].any() and not result[2, :, 8:].any()


def test_zero_shot_accepts_any_aspect_ratio(model, pictures, tmp_path):
    rows = np.random.default_rng(0).normal(size=(3, 24)).astype("float32")
    np.savez(tmp_path / "classes.npz", names=list("abc"), embeddings=rows, scale=10.0, bias=-5.0)
    classifier = keras_vit.zero_shot(model, tmp_path / "classes.npz")
    batch = keras_vit.preprocess_input(pictures[5:8], classifier)
    pooled = keras_vit.features(model, batch, tokens="pooled")
    pooled, rows = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (pooled, rows))
    assert_close(classifier(batch), 10 * pooled @ rows.T - 5)
    np.savez(tmp_path / "wide.npz", names=list("abc"), embeddings=np.ones((3, 25)), scale=10.0)
    with pytest.raises(ValueError, match="as wide as the text embeddings"):
        keras_vit.zero_shot(model, tmp_path / "wide.npz")


# Training, evaluation and exports


def photos(path):
    for i, label in itertools.product(range(12), range(2)):
        (path / "ab"[label]).mkdir(parents=True, exist_ok=True)
        size = (20 + 5 * i, 70 - 4 * i)
        keras.utils.save_img(
            path / "ab"[label] / f"{i}.png", np.full((*size, 3), 200 * label + i), scale=False
        )


def config_of(path, folder="", **fields):
    sizes = {"patch_size": 8, "num_layers": 3, "hidden_size": 24, "mlp_dim": 44, "num_heads": 3}
    fields = {
        "name": "folder",
        "path": str(path),
        "test_share": 0.25,
        "max_patches": 16,
        "patch_size": 8,
        **fields,
    }
    return ConfigDict(
        recipes.defaults(
            **families.model_config("NaFlexVisionTransformer", **sizes),
            weights=str(folder),
            batch_size=6,
            total_steps=12,
            log_every_steps=12,
            data=data.defaults(**fields),
            optimizer={"name": "adamw"},
            schedule={"base": 3e-3, "warmup_steps": 1},
        )
    )


@pytest.mark.one_backend
@pytest.mark.full
def test_data_pipeline_makes_naflex_batches(tmp_path):
    photos(tmp_path)
    inputs = data.from_config(config_of(tmp_path, augreg="light1").data, batch_size=6, seed=0)
    for batches in (inputs.train_batches(), inputs.eval_batches()):
        images, *_ = next(iter(batches))
        assert inputs.image_shape == images.shape[1:] == (16, 66, 3)
        assert (images[:, 0, -2:] == 1).numpy().all() and (
            np.ptp(images[:, :, -2:], 1).max((1, 2)) > 3
        ).any()


@pytest.mark.one_backend
def test_unreadable_image_becomes_one_blank_patch(folder, tmp_path):
    photos(tmp_path)
    (tmp_path / "a" / "0.png").write_bytes(b"no image")
    source = data.load_split("folder", "", path=str(tmp_path))
    batches = data.eval_batches(source, batch_size=24, max_patches=16, patch_size=8)
    images, labels, weights = (part.numpy() for part in next(iter(batches)))
    assert weights.sum() == 23 and not labels[weights == 0].any()
    blank = images[weights == 0][0]
    assert (blank[0, -2:] == 1).all() and not blank[1:].any() and not blank[0, :-2].any()


@pytest.mark.one_backend
def test_naflex_data_options_are_validated(tmp_path):
    photos(tmp_path)
    inputs = data.from_config(config_of(tmp_path).data, batch_size=6, seed=0)
    assert inputs.image_shape == (16, 66, 3) and inputs.model_preprocessing().resize == "naflex"
    for field, value in {
        "mixup_alpha": 0.2,
        "image_size": 32,
        "train_crop": "none",
        "augreg": "light2",
    }.items():
        with pytest.raises(ValueError, match=f"`max_patches` .NaFlex.* Received: {field}="):
            _ = data.from_config({**config_of(tmp_path).data, field: value}, batch_size=6, seed=0)
    small = small_data.get_config("SigLIP2-NaFlex-B/16,folder")
    assert (small.data.max_patches, small.data.patch_size, small.data.image_size) == (256, 16, 0)
    config = config_of(tmp_path, max_patches=0, image_size=32)
    config.update(architecture="NaFlexVisionTransformer")
    config.model.update(max_patches=16)
    with pytest.raises(
        ValueError, match="max_patches=256 --config.data.patch_size=8. Received: images"
    ):
        tasks.get(config).build_model(data.from_config(config.data, batch_size=6, seed=0))


@pytest.mark.full
def test_classifier_trains_and_evaluates(folder, tmp_path):
    photos(tmp_path / "photos")
    config = config_of(tmp_path / "photos", folder)
    result = training.run(
        config, training.Workdir(tmp_path / "run", config.to_dict()), write=lambda line: None
    )
    model = result.model
    assert model.input_shape == (None, 16, 66, 3) and model.output_shape == (None, 2)
    assert result.metrics["test/accuracy"] == 1
    metrics = evaluation.evaluate(model, ["top1", "knn"], result.inputs)
    assert all(np.isfinite(value) for value in metrics.values())
    inputs = evaluation.load_inputs(
        model, "folder", str(tmp_path / "photos"), splits=("",), batch_size=6
    )
    assert inputs.image_shape == (16, 66, 3)


@tensorflow_only
@pytest.mark.full
def test_export_accepts_any_aspect_ratio(folder, pictures, tmp_path):
    import tensorflow as tf

    model = keras_vit.from_pretrained(folder, head="new", include_top=True, classes=4)
    randomize_head(model)
    signatures = ("serving_default", "tensor", "features")
    version = keras_vit.export.saved_model(model, tmp_path / "export", signatures=signatures)
    served = tf.saved_model.load(version).signatures
    chosen = pictures[:4]
    files = tf.constant([tf.io.encode_png(image).numpy() for image in chosen])
    batch = keras_vit.preprocess_input(chosen, model)
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(model(batch)))
    np.testing.assert_allclose(
        served["serving_default"](image_bytes=files)["probabilities"], expected, atol=1e-5
    )
    np.testing.assert_allclose(served["tensor"](images=batch)["probabilities"], expected, atol=1e-5)
    assert served["features"](image_bytes=files)["patches"].shape == (4, 16, 24)
    for export in (keras_vit.export.litert, keras_vit.export.onnx):
        with pytest.raises(
            ValueError,
            match="only be exported as a SavedModel",
        ):
            export(
                model,
                tmp_path / ("model.tflite" if export is keras_vit.export.litert else "model.onnx"),
            )
    with pytest.raises(ValueError, match="Each image of a NaFlex batch has its own patch grid"):
        keras_vit.export.check(model, signatures=("attention",))


@tensorflow_only
@pytest.mark.full
@pytest.mark.parametrize("channels", [1, 4])
def test_exports_support_other_channels(channels, tmp_path):
    sizes = {**SIZES, "patch_size": 8, "classes": 2}
    shape = (32, 32, channels)
    model = keras_vit.NaFlexVisionTransformer(**sizes, input_shape=shape, max_patches=16)
    card = keras_vit.export.load_card(keras_vit.export.saved_model(model, tmp_path))
    assert set(card["self_test"]["largest_differences"]) == {"serving_default", "tensor"}


@pytest.mark.full
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no libtpu: pip install -e '.[cpu,aot]'"
)
def test_tpu_check_compiles_a_step(folder, tmp_path):
    from keras_vit import tpu

    photos(tmp_path)
    config = config_of(tmp_path, folder)
    check = tpu.check(tasks.get(config), config, 32, "v3:2x2")
    assert check.compiles and not check.error and check.model_flops > 0
