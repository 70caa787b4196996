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
        examples = [source.read(i) for i in range(source.num_examples)]
        np.testing.assert_array_equal(
            [example["image"].numpy()[..., 0] for example in examples], images
        )
        assert [int(example["label"]) for example in examples] == [
            i % 4 for i in range(len(images))
        ]
    assert source.class_names == ("0", "1", "2", "3")


def test_idx_subsets_are_balanced(folder):
    few = data.load_split("idx", "train[:8]", path=str(folder))
    assert np.bincount(few.labels).tolist() == [2, 2, 2, 2]
    tune_train, tune_val = data.load(
        "idx", path=str(folder), train_split="tune_train", test_split="tune_val"
    )
    assert (tune_train.num_examples, tune_val.num_examples) == (36, 4)


@pytest.mark.parametrize("examples", [20, 4])
def test_tiny_sets_have_no_tuning_splits(tmp_path, examples):
    for prefix in IMAGES:
        write(tmp_path, prefix, RNG.integers(0, 256, (examples, 6, 5), np.uint8), "images")
        write(tmp_path, prefix, (np.arange(examples) % 10).astype(np.uint8), "labels")
    train, test = data.load("idx", path=str(tmp_path))
    assert train.num_examples == test.num_examples == examples
    with pytest.raises(ValueError, match="splits of idx are train, test, or"):
        data.load_split("idx", "tune_val", path=str(tmp_path))


def test_gray_images_are_resized_for_color_models(folder):
    fields = {
        "name": "idx",
        "path": str(folder),
        "image_size": 12,
        "train_crop": "resize",
        "eval_crop": "resize",
    }
    images, labels, _ = next(
        iter(data.from_config(fields, batch_size=4, seed=0).train_batches(start_step=0))
    )
    assert images.shape == (4, 12, 12, 3) and labels.shape == (4, 4)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("size", [0, 3, 9, 12, 16, 100, None])
def test_error_names_truncated_idx_file(folder, compress, size):
    name = "train-images-idx3-ubyte.gz" if compress else "t10k-images-idx3-ubyte"
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(b"no" + content[2:] if size is None else content[:size])
    with pytest.raises(ValueError, match=f"complete IDX file .*with 3 .*: .*{name}"):
        data.load("idx", path=str(folder))


def test_error_names_corrupt_gzip_data(folder):
    file = folder / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:12] + b"\xff" * 200)
    with pytest.raises(ValueError, match="a complete IDX file .*Received: .*train-images"):
        data.load("idx", path=str(folder))


def test_rejects_missing_and_malformed_idx_files(folder):
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x0d\1" + bytes(12))
    with pytest.raises(ValueError, match="IDX file .*with 1 dim.*: .*t10k-labels"):
        data.load("idx", path=str(folder))
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match="a folder with IDX files.*Received: no .*t10k-labels"):
        data.load("idx", path=str(folder))
