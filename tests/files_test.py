"""Tests of `keras_vit.files`."""

import os
import time
from pathlib import Path

import keras
import pytest

from keras_vit import files

needs_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="needs tf.io.gfile"
)


@pytest.fixture(params=["local", pytest.param("remote", marks=needs_tensorflow)])
def folder(request, tmp_path):
    """Returns an existing folder, on disk or in TensorFlow's in-memory file system."""
    if request.param == "local":
        return files.as_path(tmp_path)
    folder = files.as_path(f"ram://{tmp_path.name}")
    files.make_dirs(folder)
    files.write_json(folder / "first.json", {})  # ensures that the folder exists in ram://
    files.remove(folder / "first.json")
    return folder


def test_atomic_write_round_trips(folder):
    with files.atomic_write(folder / "a.txt") as file:
        file.write("päth\n")
    with files.atomic_write(folder / "b.bin", "wb") as file:
        file.write(b"\x00\xff")
    assert files.read_text(folder / "a.txt") == "päth\n"
    assert files.list_dir(folder) == ["a.txt", "b.bin"]


def test_failed_write_keeps_old_file(folder):
    files.write_json(folder / "x.json", {"a": 1})
    with pytest.raises(KeyError), files.atomic_write(folder / "x.json") as file:
        file.write("{")
        raise KeyError
    assert files.read_json(folder / "x.json") == {"a": 1}
    assert files.list_dir(folder) == ["x.json"]


def test_temporary_path_is_unique_and_keeps_suffix(tmp_path):
    target = tmp_path / "m.weights.h5"
    with (
        files.atomic_path(target, ".weights.h5") as outer,
        files.atomic_path(target, ".weights.h5") as inner,
    ):
        for path in map(Path, (outer, inner)):
            assert path.parent == tmp_path
            assert path.name.endswith(".part.weights.h5")
            path.write_text(path.name)
    assert files.list_dir(tmp_path) == ["m.weights.h5"]
    assert target.read_text() == Path(outer).name  # the outer context exits last


def test_remove_leftovers_deletes_only_old_partial_files(tmp_path):
    now = time.time()
    kept = ["m.npz", "m.part1.npz"]
    for name in (*kept, "m.0123456789ab.part", "m.0123456789ab.part.npz"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - 1000, now - 1000))
    fresh = "m.ba9876543210.part"
    (tmp_path / fresh).touch()
    files.remove_leftovers(tmp_path, older_than_seconds=100)
    assert files.list_dir(tmp_path) == [fresh, *kept]


def test_append_copy_and_remove(folder):
    files.write_json(folder / "a", 1)
    files.append_text(folder / "a", "2\n")
    for _ in range(2):  # the second copy replaces the first
        files.copy(folder / "a", folder / "b")
    files.remove(folder / "a")
    assert files.read_text(folder / "b") == "1\n2\n"
    assert files.list_dir(folder) == ["b"] and not files.exists(folder / "a")


def test_folders_are_made_and_removed(folder):
    for _ in range(2):  # the folder may exist
        files.make_dirs(folder / "c/d")
    assert files.is_dir(folder / "c")
    files.remove_tree(folder / "c")
    assert not files.exists(folder / "c")


def test_missing_text_raises_and_missing_json_is_none(folder):
    with pytest.raises(FileNotFoundError):
        files.read_text(folder / "none")
    assert files.read_json(folder / "none") is None


def test_run_python_returns_last_line():
    code = "import os; print(1); print(os.environ['WORD'])"
    assert files.run_python(["-c", code], WORD="two") == "two"
    assert files.run_python(["-c", ""]) == ""
    with pytest.raises(ChildProcessError, match="^ValueError: three$"):
        files.run_python(["-c", "raise ValueError('three')"])
    with pytest.raises(ChildProcessError, match="exited with code 7"):
        files.run_python(["-c", "import sys; sys.exit(7)"])


def test_staging_folder_is_deleted_unless_kept(tmp_path):
    with files.staging_dir(tmp_path) as folder:
        os.rename(folder, tmp_path / "whole")
    assert os.stat(tmp_path / "whole").st_mode & 0o777 == 0o755
    with pytest.raises(KeyError), files.staging_dir(tmp_path, kept_after=(ValueError,)):
        raise KeyError
    assert files.list_dir(tmp_path) == ["whole"]
    with pytest.raises(ValueError), files.staging_dir(tmp_path, kept_after=(ValueError,)) as folder:
        raise ValueError
    assert files.list_dir(tmp_path) == [os.path.basename(folder), "whole"]


def test_deeply_nested_json_raises_a_value_error(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 10**5)
    with pytest.raises(ValueError, match="must be JSON"):
        files.read_json(tmp_path / "deep.json")


def test_nonfinite_numbers_become_json_null(tmp_path):
    content = {"a": [float("nan"), 1.5], "b": {"c": float("inf")}, "d": "NaN"}
    files.write_json(tmp_path / "x.json", content)
    assert files.read_json(tmp_path / "x.json") == {"a": [None, 1.5], "b": {"c": None}, "d": "NaN"}
