"""Tests of the target kind "none"."""

import pytest

from keras_vit import data

from .helpers import jpeg, write_jpegs


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


@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        ("none", {"label_smoothing": 0.1}, "label_smoothing must not be set"),
        ("tiles", {}, "target='tiles'"),
    ],
)
def test_rejects_bad_fields(fields, target, changes, message):
    with pytest.raises(ValueError, match=message):
        data.from_config({**fields, **changes}, batch_size=3, seed=0, target=target)


def test_one_image_is_not_divided(tmp_path):
    write_jpegs(tmp_path / "images", 1)
    with pytest.raises(ValueError, match="has no images.*split='test'"):
        data.load_split("images", "test", path=str(tmp_path / "images"))
