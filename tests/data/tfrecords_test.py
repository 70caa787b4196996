"""Tests of TFRecord files: local files are read by index, and remote files in order."""

import re

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import sources

from .helpers import flip_bit, jpeg, read_all, write_examples, write_records


@pytest.fixture
def records(tmp_path):
    """Returns a file of five records of two classes."""
    path = tmp_path / "train-0"
    write_records(path, map(jpeg, range(5)), [0, 1, 0, 1, 0])
    return path


def test_records_are_read_by_index_across_files(tmp_path):
    labels = [1, 2, 3, 1, 2, 2, 3]
    write_records(tmp_path / "train-0", map(jpeg, range(4)), labels[:4])
    write_records(tmp_path / "train-1", map(jpeg, range(4, 7)), labels[4:])
    source = data.tfrecords(tmp_path / "train-*", ["a", "b", "c"], label_offset=1)
    examples = read_all(source)
    assert [example["image"] for example in examples] == [jpeg(i) for i in range(7)]
    assert [example["label"] + 1 for example in examples] == labels
    assert source.name_of(5) == f"{tmp_path}/train-1 record 1"


def test_records_with_a_flipped_bit_are_bad_examples(records):
    flip_bit(records, jpeg(0))
    flip_bit(records, jpeg(4))
    source = data.tfrecords(records, ["a", "b"])
    ((*_, weights),) = data.eval_batches(source, batch_size=5, image_size=8)
    assert np.flatnonzero(weights == 0).tolist() == [0, 4]
    reasons = data.verify(source)["reasons"]
    assert list(reasons) == [f"{records} record {number}" for number in (0, 4)]
    assert all("corrupted" in reason for reason in reasons.values())


@pytest.mark.parametrize("count", [5, 16])
def test_trailing_zeros_are_an_error_with_their_offset(count, records):
    content = records.read_bytes()
    records.write_bytes(content + bytes(count))
    with pytest.raises(ValueError, match=f"broken at or before byte {len(content)}$"):
        data.tfrecords(records, ["a", "b"])


def test_a_truncated_record_is_an_error(records):
    records.write_bytes(records.read_bytes()[:-4])  # without the checksum of the last record
    with pytest.raises(ValueError, match="broken at or before byte"):
        data.tfrecords(records, ["a", "b"])


@pytest.mark.parametrize("bit", [0, 20, 62])
def test_flipped_bit_in_a_length_is_an_error_with_an_offset(bit, records):
    content = bytearray(records.read_bytes())
    # A record has 12 bytes before and 4 bytes after its content.
    start = 16 + int.from_bytes(content[:8], "little")
    content[start + bit // 8] ^= 1 << bit % 8
    records.write_bytes(content)
    with pytest.raises(ValueError, match="broken at or before byte") as error:
        data.tfrecords(records, ["a", "b"])
    assert int(str(error.value).split()[-1]) >= start


def test_rejects_missing_files_and_other_formats(tmp_path):
    with pytest.raises(ValueError, match="must match at least one file"):
        data.tfrecords(tmp_path / "no-*", ["a"])
    (tmp_path / "text").write_text("not a file of TFRecords")
    with pytest.raises(ValueError, match="broken at .* byte 0"):
        data.tfrecords(tmp_path / "text", ["a"])


def test_an_unknown_file_system_is_an_error_of_one_line():
    with pytest.raises(ValueError, match="cannot be read .*'nfs'.* split='nfs://a/b'"):
        data.load_split("tfrecords", "nfs://a/b", classes=2)


def test_rejects_compressed_records(tmp_path):
    path = str(tmp_path / "compressed")
    with tf.io.TFRecordWriter(path, "GZIP") as writer:
        writer.write(b"x" * 100)
    with pytest.raises(ValueError, match=r"\(use gunzip\). Received: '.*compressed'"):
        data.tfrecords(path, ["a"])


def test_rejects_records_with_wrong_features_or_labels(tmp_path):
    write_examples(tmp_path / "r", [{"jpeg": jpeg(0), "class": 3}])
    names = ["a", "b", "c"]
    keys = {"image_key": "jpeg", "label_key": "class"}
    with pytest.raises(ValueError, match=r"--config.data.image_key.*record 0"):
        data.tfrecords(tmp_path / "r", names)
    with pytest.raises(ValueError, match=r"from 0 to 2. Received: 3 in .*r record 0"):
        data.tfrecords(tmp_path / "r", names, **keys)
    assert not data.verify(data.tfrecords(tmp_path / "r", names, **keys, label_offset=1))["bad"]


def test_verify_names_a_wrong_label(tmp_path):
    write_records(tmp_path / "r", map(jpeg, range(4)), [1, 0, 2, 1])
    ((name, reason),) = data.verify(data.tfrecords(tmp_path / "r", ["a", "b"]))["reasons"].items()
    assert name == f"{tmp_path}/r record 2" and re.search("from 0 to 1.*but is: 2", reason)


def test_expected_number_is_that_of_the_training_records(records, tmp_path):
    write_records(tmp_path / "test-0", [jpeg(5)], [1])
    splits = {"train_split": "train-*", "test_split": "test-*"}
    fields = {"path": f"{tmp_path}//", "classes": 2, **splits}
    train, test = data.load("tfrecords", num_examples=5, **fields)
    assert (train.num_examples, test.num_examples) == (5, 1)
    with pytest.raises(ValueError, match="num_examples=6, 5 records"):
        data.load("tfrecords", num_examples=6, **fields)


def test_classes_and_class_names_must_agree(records):
    with pytest.raises(ValueError, match="classes=3, 2 names"):
        data.load_split("tfrecords", str(records), class_names=("a", "b"), classes=3)


@pytest.fixture
def remote(monkeypatch, tmp_path):
    """Writes three remote files of five records each and returns a glob pattern for them. The cache
    folder is empty."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
    for number in range(3):
        path = f"ram://{tmp_path.name}/train-{number}"
        write_records(path, map(jpeg, range(5)), [number] * 5)
    return f"ram://{tmp_path.name}/train-*"


def test_remote_records_are_read_in_order(remote):
    source = data.tfrecords(remote, ["a", "b", "c"])
    assert source.read is None and source.num_examples == 15
    assert source.name_of(7) == remote.replace("*", "1") + " record 2"
    ((_, labels, weights),) = data.eval_batches(source, batch_size=15, image_size=8)
    assert np.argmax(labels, 1).tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert weights.numpy().all()


def test_remote_records_are_counted_once(remote, monkeypatch):
    data.tfrecords(remote, ["a", "b", "c"])
    monkeypatch.setattr(sources.record_files, "_count_records", None)
    assert data.tfrecords(remote, ["a", "b", "c"], num_examples=15).num_examples == 15
    with pytest.raises(ValueError, match="num_examples=16, 15 records"):
        data.tfrecords(remote, ["a", "b", "c"], num_examples=16)


def test_rejects_damaged_remote_file(remote, tmp_path):
    file = remote.replace("*", "1")
    tf.io.gfile.copy(file, str(tmp_path / "copy"))
    flip_bit(tmp_path / "copy", jpeg(2))
    tf.io.gfile.copy(str(tmp_path / "copy"), file, overwrite=True)
    with pytest.raises(ValueError, match="TFRecord file must be complete.*train-1"):
        data.tfrecords(remote, ["a", "b", "c"])


def test_deleted_remote_file_does_not_stall_reading(remote):
    source = data.tfrecords(remote, ["a", "b", "c"])
    tf.io.gfile.remove(remote.replace("*", "1"))
    ((*_, weights),) = data.eval_batches(source, batch_size=15, image_size=8)
    assert np.flatnonzero(weights == 0).tolist() == [5, 6, 7, 8, 9]
