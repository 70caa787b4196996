"""Tests of hash-based splits: test shares, folds, groups and tuning splits."""

import numpy as np
import pytest

from keras_vit import data

from .helpers import jpeg, names_of, write_jpegs


def test_hashed_split_depends_on_the_seed_but_not_on_other_classes(photos):
    def tested(seed=0):
        return names_of(data.folder(photos, "test", test_share=0.25, split_seed=seed))

    before = tested()
    assert tested() == before != tested(seed=1)
    (photos / "cat" / "99.jpg").write_bytes(b"another")
    # The names are sorted by class: 3 ants and 2 bees.
    assert tested()[:5] == before[:5]


@pytest.mark.parametrize(("share", "of_ten"), [(0.1, 1), (0.9, 9)])
def test_hashed_split_of_small_classes(share, of_ten, tmp_path, caplog):
    """For any `test_share`, a class with one image has no test image. A class with two images has
    one test image."""
    for name, count in (("one", 1), ("two", 2), ("ten", 10)):
        write_jpegs(tmp_path / name, count)
    train, test = data.load("folder", path=str(tmp_path), test_share=share)
    assert train.class_names == ("one", "ten", "two")
    assert np.bincount(test.labels, minlength=3).tolist() == [0, of_ten, 1]
    assert np.bincount(train.labels).tolist() == [1, 10 - of_ten, 1]
    assert "without examples in the test split: " in caplog.text


def test_hashed_split_without_test_images_is_refused(tmp_path):
    write_jpegs(tmp_path / "one", 1)
    with pytest.raises(ValueError, match="no images, because .*data.test_share"):
        data.load("folder", path=str(tmp_path))


@pytest.mark.parametrize("is_divided", [True, False], ids=["subfolders", "no subfolders"])
def test_tuning_splits_divide_the_training_split(is_divided, photos):
    if is_divided:
        (photos / "train").mkdir()
        for name in ("ant", "bee", "cat"):
            (photos / name).rename(photos / "train" / name)
            write_jpegs(photos / "test" / name, 1)
    train, test, tune_train, tune_val = (
        names_of(data.folder(photos, split, test_share=0.25))
        for split in ("train", "test", "tune_train", "tune_val")
    )
    assert sorted(tune_train + tune_val) == sorted(train)
    assert sorted(train + test) == sorted(map(str, photos.rglob("*.jpg")))
    # A quarter of the training images of each class, rounded: 12, 7 and 4 images, or 9, 5 and 3.
    assert len(tune_val) == (6 if is_divided else 4)


def _save_patients(path, count=10):
    """Saves three images of each patient; patients with an even number are ill in one of them.

    Returns the lines of a list of the images.
    """
    lines = []
    for i in range(3 * count):
        patient = i // 3
        name = "ill" if patient % 2 == 0 and i % 3 == 0 else "well"
        file = path / name / f"p{patient}_{i % 3}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(i % 20))
        lines.append(f"{name}/{file.name},{name},p{patient}\n")
    return lines


def _patients(source):
    """Returns the patients of a source, whose images have names such as `p3_0.jpg`."""
    return {source.short_name(i).split("_")[0] for i in range(source.num_examples)}


@pytest.mark.parametrize("fields", [{"test_share": 0.3}, {"fold": "2/3"}])
def test_images_of_a_group_are_never_divided(fields, tmp_path):
    _save_patients(tmp_path)
    fields = {"path": str(tmp_path), "groups": r"^(p\d+)_", **fields}
    train, test, tune_train, tune_val = (
        _patients(data.load_split("folder", split, **fields))
        for split in ("train", "test", "tune_train", "tune_val")
    )
    assert test and not train & test and len(train | test) == 10
    assert tune_val and not tune_train & tune_val and tune_train | tune_val == train


def test_pattern_with_a_slash_is_searched_in_the_path_below_the_folder(tmp_path):
    for label in "ab":
        write_jpegs(tmp_path / label, 20)
    # The group of a/13.jpg is a/1.
    train, test = data.load("folder", path=str(tmp_path), groups=r"^(./\d)", test_share=0.3)
    train_groups, test_groups = (
        {name.removeprefix(f"{tmp_path}/")[:3] for name in names_of(source)}
        for source in (train, test)
    )
    assert len(train_groups) == 14 and len(test_groups) == 6
    assert not train_groups & test_groups


def test_each_image_is_tested_in_one_fold(photos):
    tested = []
    for fold in ("1/3", "2/3", "3/3"):
        train, test = data.load("folder", path=str(photos), fold=fold)
        assert train.num_examples + test.num_examples == 23
        assert np.bincount(test.labels).min() >= 1
        tested += names_of(test)
    assert sorted(tested) == sorted(map(str, photos.rglob("*.jpg")))


@pytest.mark.parametrize("groups", ["patient", r"(p\d+)_"], ids=["column", "pattern"])
def test_list_is_divided_by_a_column_or_a_pattern(groups, tmp_path):
    lines = _save_patients(tmp_path)
    if groups == "patient":
        table = "file,label,patient\n" + "".join(lines)
    else:
        table = "".join(line.rpartition(",")[0] + "\n" for line in lines)
    (tmp_path / "all.csv").write_text(table)
    train, test = data.load("list", path=str(tmp_path / "all.csv"), groups=groups, fold="1/4")
    assert train.num_examples and test.num_examples
    assert not _patients(train) & _patients(test)
    assert len(_patients(train) | _patients(test)) == 10
    assert train.class_names == test.class_names == ("ill", "well")


def test_a_column_without_a_name_has_no_groups(tmp_path):
    rows = [line.rpartition(",")[0] for line in _save_patients(tmp_path)]
    tests = []
    for header, start in (("file,label", ""), (",file,label", "{},"), ("file,label,", "")):
        lines = [header, *(start.format(number) + row for number, row in enumerate(rows))]
        (tmp_path / "all.csv").write_text("\n".join(lines))
        tests.append(names_of(data.load_split("list", "test", path=str(tmp_path / "all.csv"))))
    assert tests[0] == tests[1] == tests[2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"groups": r"^(p\d+)_"}, "in the name of each image.*'00.jpg'"),
        ({"groups": "0"}, "regular expression with one"),
        ({"groups": "("}, "regular expression with one"),
        ({"groups": r"\d*(x?)"}, "in the name of each image"),
        ({"groups": "([.])jpg"}, "classes with a single image or group"),
        ({"fold": "0/5"}, "fold='0/5'"),
        ({"fold": "6/5"}, "fold='6/5'"),
        ({"fold": "1/1"}, "fold='1/1'"),
        ({"fold": "x"}, "fold='x'"),
    ],
)
def test_rejects_bad_groups_and_folds(fields, message, photos):
    with pytest.raises(ValueError, match=message):
        data.load("folder", path=str(photos), **fields)


@pytest.mark.parametrize("name", ["folder", "list"])
def test_stored_splits_have_no_groups(name, tmp_path):
    write_jpegs(tmp_path / "train" / "a", 1)
    fields = {"path": str(tmp_path)} if name == "folder" else {}
    with pytest.raises(ValueError, match="apply to data without own splits"):
        data.load(name, groups="(.)", **fields)
