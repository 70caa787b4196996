"""Tests of the target kind "none", and of targets that follow the geometry of their images."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data

from .helpers import jpeg


@pytest.fixture
def fields(tmp_path):
    """Writes four visible images and returns the fields that load them."""
    for name in ("0", "1", "a/2", "a/b/3", ".hidden/4"):
        path = tmp_path / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(int(path.stem)))
    return {
        "name": "images",
        "path": str(tmp_path),
        "image_size": 8,
        "test_share": 0.25,
        "mixup_alpha": 0.2,
    }


def test_images_need_no_classes(fields):
    inputs = data.from_config(fields, batch_size=3, seed=0, target="none")
    assert (inputs.train.num_examples, inputs.test.num_examples) == (3, 1)
    images, targets, weights = next(iter(inputs.train_batches()))
    assert images.shape == (3, 8, 8, 3)
    assert targets.numpy().tolist() == [0] * 3 and weights.numpy().tolist() == [1] * 3
    assert data.verify(inputs.train)["bad"] == []


def test_rejects_bad_fields_of_images_without_classes(fields, tmp_path):
    with pytest.raises(ValueError, match="label_smoothing must not be set"):
        data.from_config({**fields, "label_smoothing": 0.1}, batch_size=3, seed=0, target="none")
    with pytest.raises(ValueError, match="must be one of classes, none.*target='tiles'"):
        data.from_config(fields, batch_size=3, seed=0, target="tiles")
    with pytest.raises(ValueError, match="has no images.*split='test'"):
        data.load_split("images", "test", path=str(tmp_path / "a" / "b"))


class RedChannel(data.Target):
    """The red channel of the stored image, moved like the image. It is 255 outside of the image."""

    def spec(self):
        return tf.TensorSpec(self.options.image_shape(self.source)[:2], tf.uint8)

    def decode(self, example):
        return example["image"][..., 0], tf.constant(1.0), tf.constant(True)

    def transform(self, target, geometry):
        places = geometry(tf.shape(target))
        moved = tf.gather_nd(target, tf.maximum(places, 0))
        return tf.where(places[..., 0] < 0, tf.constant(255, tf.uint8), moved)


@pytest.mark.parametrize("crop", ["none", "resize", "resize_crop", "inception"])
def test_targets_follow_the_geometry_of_their_images(crop):
    # Large blocks of one color, so that most resized pixels have the color of their nearest pixel.
    blocks = np.random.default_rng(0).integers(0, 200, (6, 3, 3, 1), "uint8")
    pixels = np.repeat(np.repeat(np.repeat(blocks, 16, 1), 16, 2), 3, 3)
    source = dataclasses.replace(data.arrays(pixels, [0] * 6, ["a"]), options={})
    size = 48 if crop == "none" else 32
    resized = {"resize_size": 40} if crop == "resize_crop" else {}
    options = data.Options(
        image_size=size,
        train_crop=crop,
        eval_crop=crop.replace("inception", "resize"),
        flip="on",
        shift=3,
        **resized,
    ).resolve(source)
    arguments = {"batch_size": 6, "options": options, "target": RedChannel(source, options)}
    for batches in (
        data.train_batches(source, seed=1, **arguments),
        data.eval_batches(source, **arguments),
    ):
        images, targets, _ = next(iter(batches))
        red = 127.5 * images.numpy()[..., 0] + 127.5
        is_inside = targets.numpy() < 255
        is_equal = np.abs(red - targets.numpy().astype("float32")) < 1
        # Resized pixels at the edges of the blocks are mixtures of two colors.
        assert is_equal[is_inside].mean() > (0.999 if crop == "none" else 0.8)
        assert (red[~is_inside] < 1).all() and is_inside.mean() > 0.75
