"""Tests of the files of a checkpoint that several hosts write."""

import numpy as np
import pytest

from keras_vit.training.state_files import CorruptCheckpointError, StateReader, write_state

WEIGHT = "weights/0/a@b"
VALUES = np.arange(12.0, dtype="float32").reshape(4, 3)


@pytest.fixture
def path(tmp_path):
    """Returns the path of a state. Each of two hosts has written two rows of `VALUES`."""
    path = str(tmp_path / "state")
    write_state(path, [(WEIGHT, (0, 0), VALUES[:2]), ("slots/0/n", None, np.int32(7))], 0, 2)
    write_state(path, [(WEIGHT, (2, 0), VALUES[2:])], 1, 2)
    return path


def test_reads_whole_arrays_and_parts_from_the_files_of_all_hosts(path):
    with StateReader(path) as reader:
        assert reader.check(WEIGHT, (4, 3))
        np.testing.assert_array_equal(reader.read(WEIGHT, (4, 3)), VALUES)
        part = reader.read(WEIGHT, (4, 3), (slice(1, 3), slice(None)))
        np.testing.assert_array_equal(part, VALUES[1:3])
        assert reader.read("slots/0/n", ()) == 7


@pytest.mark.parametrize(
    ("name", "shape"),
    [(WEIGHT, (4, 4)), (WEIGHT, (3, 3)), (WEIGHT, (12,)), ("weights/1/c", (2,))],
    ids=["too few elements", "too many rows", "too many axes", "missing"],
)
def test_rejects_arrays_of_another_state(name, shape, path):
    with (
        StateReader(path) as reader,
        pytest.raises(ValueError, match=f"it needs '{name}' of shape"),
    ):
        reader.check(name, shape)


def test_missing_file_of_a_host_is_corruption(path, tmp_path):
    (tmp_path / "state-00001-of-00002.npz").unlink()
    with pytest.raises(CorruptCheckpointError, match="missing: .*00001-of-00002"):
        StateReader(path)
