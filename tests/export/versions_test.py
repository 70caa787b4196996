"""Tests of the version numbers of exports on local and remote file systems."""

import os

import pytest
import tensorflow as tf

from keras_vit.export import versions


def write_export(folder):
    """Writes the files of an export. Their contents are their names."""
    for name in ("saved_model.pb", "variables/variables.index", "assets/labels.txt"):
        os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
        with open(f"{folder}/{name}", "w") as file:
            file.write(name)


def publish(base_dir, version=None):
    """Writes and publishes an export, and returns its path."""
    with versions.staging_dir(str(base_dir)) as folder:
        write_export(folder)
        return versions.publish(folder, str(base_dir), version)


def test_next_version_follows_largest_number(tmp_path):
    assert versions.next_version(tmp_path / "nothing") == 1
    for name in ("2", "010", "9", "partial-11", "03x"):
        (tmp_path / name).mkdir()
    assert versions.next_version(tmp_path) == 11
    assert versions.newest_version(tmp_path) == str(tmp_path / "010")


def test_version_is_published_when_complete(tmp_path):
    with versions.staging_dir(str(tmp_path / "model")) as folder:
        write_export(folder)
        assert not [name for name in os.listdir(tmp_path / "model") if name.isdecimal()]
        path = versions.publish(folder, str(tmp_path / "model"), None)
    assert path == str(tmp_path / "model" / "1")
    assert os.listdir(tmp_path / "model") == ["1"]


def test_concurrent_exports_get_different_versions(tmp_path, monkeypatch):
    numbers = iter([1, 1, 2])  # the second export chooses 1 again, and then 2
    monkeypatch.setattr(versions, "next_version", lambda _: next(numbers))
    assert [publish(tmp_path), publish(tmp_path)] == [str(tmp_path / "1"), str(tmp_path / "2")]


def test_concurrently_created_version_is_kept(tmp_path):
    (tmp_path / "5").mkdir()  # by an export that was faster
    with pytest.raises(ValueError, match="never overwritten"):
        publish(tmp_path, 5)
    assert os.listdir(tmp_path) == ["5"]
    assert os.listdir(tmp_path / "5") == []


def test_remote_export_writes_saved_model_pb_last(monkeypatch):
    copied = {}
    copy = tf.io.gfile.copy

    def record_copy(source, target):
        copied[target] = source
        copy(source, target)

    monkeypatch.setattr(tf.io.gfile, "copy", record_copy)
    for number in (1, 2):
        assert publish("ram://versions/model") == f"ram://versions/model/{number}"
    assert list(copied)[5:] == ["ram://versions/model/2/saved_model.pb"]
    assert not any(map(os.path.exists, copied.values()))  # the local copies are deleted
    with tf.io.gfile.GFile("ram://versions/model/2/variables/variables.index") as file:
        assert file.read() == "variables/variables.index"
    with pytest.raises(ValueError, match="Received: ram://versions/model/2, which exists"):
        versions.check_version("ram://versions/model", 2)
