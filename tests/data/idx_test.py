"""Tests of IDX files, the format of MNIST and Fashion-MNIST."""

import gzip
import struct

import numpy as np
import pytest

from keras_vit import data

RNG = np.random.default_rng(0)
IMAGES = {
    "train": RNG.integers(0, 256, (40, 6, 5), np.uint8),
    "t10k": RNG.integers(0, 256, (8, 6, 5), np.uint8),
}


def write(folder, prefix, values, kind, compress=False):
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}i", *values.shape)
    name = f"{prefix}-{kind}-idx{values.ndim}-ubyte"
    if compress:
        (folder / f"{name}.gz").write_bytes(gzip.compress(header + values.tobytes()))
    else:
        (folder / name).write_bytes(header + values.tobytes())


@pytest.fixture
def folder(tmp_path):
    for prefix, images in IMAGES.items():
        write(tmp_path, prefix, images, "images", compress=prefix == "train")
        write(tmp_path, prefix, (np.arange(len(images)) % 4).astype(np.uint8), "labels")
    return tmp_path


def test_images_and_labels_match_the_files(folder):
    for source, images in zip(data.load("idx", path=str(folder)), IMAGES.values()):
        assert source.class_names == ("0", "1", "2", "3")
        # Batches repeat the gray channel.
        ((batch, labels, _),) = data.eval_batches(source, batch_size=len(images))
        expected = np.repeat(images[..., None], 3, -1) / 127.5 - 1
        np.testing.assert_allclose(batch, expected, atol=1e-6)
        np.testing.assert_array_equal(np.argmax(labels, 1), np.arange(len(images)) % 4)


def test_a_tenth_is_held_out_for_tuning(folder):
    sizes = {"train": 40, "tune_train": 36, "tune_val": 4, "train[:8]": 8}
    assert sizes == {
        split: data.load_split("idx", split, path=str(folder)).num_examples for split in sizes
    }


@pytest.mark.parametrize("count", [20, 4])
def test_tiny_sets_have_no_tuning_splits(tmp_path, count):
    for prefix in IMAGES:
        write(tmp_path, prefix, np.zeros((count, 6, 5), np.uint8), "images")
        write(tmp_path, prefix, np.arange(count, dtype=np.uint8) % 10, "labels")
    train, test = data.load("idx", path=str(tmp_path))
    assert train.num_examples == test.num_examples == count
    with pytest.raises(ValueError, match="splits of idx are train, test, or"):
        data.load_split("idx", "tune_val", path=str(tmp_path))


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:9],
        lambda content: content[:100],
        lambda content: content[:2] + b"\x0d" + content[3:],
        # 8 images of 6 x 4 pixels, of which the last dimension is stored as -1, in four bytes.
        lambda content: content[:12] + b"\xff" * (4 + 8 * 6 * 4),
        lambda content: content[:4] + bytes(12),
    ],
    ids=["9 bytes", "100 bytes", "dtype", "shape", "no images"],
)
def test_error_names_a_damaged_file(folder, name, damage):
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    with pytest.raises(ValueError, match=f"complete IDX file .*{name}"):
        data.load("idx", path=str(folder))


def test_error_names_a_missing_file(folder):
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match="a folder with IDX files.*no .*t10k-labels"):
        data.load("idx", path=str(folder))
