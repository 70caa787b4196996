"""Tests of IDX files, the format of MNIST and Fashion-MNIST."""

import gzip
import struct

import numpy as np
import pytest

from keras_vit import data

from .helpers import read_all

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
        examples = read_all(source)
        pixels = np.stack([example["image"] for example in examples])
        np.testing.assert_array_equal(pixels, images[..., None])
        labels = [int(example["label"]) for example in examples]
        assert labels == [i % 4 for i in range(len(images))]
        # Batches repeat the gray channel.
        ((batch, *_),) = data.eval_batches(source, batch_size=len(images))
        expected = np.repeat(images[..., None], 3, -1) / 127.5 - 1
        np.testing.assert_allclose(batch, expected, atol=1e-6)


def test_idx_subsets_are_balanced(folder):
    few = data.load_split("idx", "train[:8]", path=str(folder))
    assert np.bincount(few.labels).tolist() == [2, 2, 2, 2]
    tune_train, tune_val = data.load(
        "idx", path=str(folder), train_split="tune_train", test_split="tune_val"
    )
    assert (tune_train.num_examples, tune_val.num_examples) == (36, 4)


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
        lambda content: b"",
        lambda content: content[:9],
        lambda content: content[:16],
        lambda content: content[:100],
        lambda content: b"no" + content[2:],
        lambda content: content[:12] + b"\xff" * 200,
    ],
    ids=["0 bytes", "9 bytes", "16 bytes", "100 bytes", "start", "content"],
)
def test_error_names_a_damaged_file(folder, name, damage):
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    with pytest.raises(ValueError, match=f"complete IDX file .*{name}"):
        data.load("idx", path=str(folder))


def test_rejects_missing_and_malformed_files(folder):
    labels = folder / "t10k-labels-idx1-ubyte"
    labels.write_bytes(b"\0\0\x0d\1" + bytes(12))
    with pytest.raises(ValueError, match="IDX file .*with 1 dim.*t10k-labels"):
        data.load("idx", path=str(folder))
    labels.unlink()
    with pytest.raises(ValueError, match="a folder with IDX files.*no .*t10k-labels"):
        data.load("idx", path=str(folder))
