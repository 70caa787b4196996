"""Tests of hash-based splits: test shares, folds, groups and tuning splits."""

import pytest

from keras_vit import data
from keras_vit.data.sources.division import HASHED, Division

from .helpers import names_of, write_jpegs

CLASSES = ["ant"] * 12 + ["bee"] * 7 + ["cat"] * 4


def indices_of(split, classes, **fields):
    """Returns the indices of a split of images of these classes. Three images in a row have names
    of one patient."""
    names = [f"p{number // 3}_{number}.jpg" for number in range(len(classes))]
    return Division(**fields).indices(split, names, classes)


@pytest.mark.parametrize(
    ("split", "fields", "expected"),
    [
        ("test", {}, [5, 6, 11, 13, 14, 22]),
        ("test", {"split_seed": 1}, [7, 9, 10, 14, 16, 20]),
        ("test", {"fold": "2/3"}, [2, 3, 6, 9, 13, 17, 20, 22]),
        ("tune_val", {}, [1, 3, 12, 19]),
    ],
)
def test_hashed_split_is_the_same_in_every_version(split, fields, expected):
    """With another hash, a resumed run would train on images that it has tested on."""
    assert indices_of(split, CLASSES, test_share=0.25, **fields) == expected


def test_hashed_split_does_not_depend_on_other_classes():
    with_cats, without_cats = (
        indices_of("test", classes, test_share=0.25) for classes in (CLASSES, CLASSES[:19])
    )
    assert without_cats == with_cats[:5]  # 3 ants and 2 bees


@pytest.mark.parametrize(("share", "of_ten"), [(0.1, 1), (0.9, 9)])
def test_hashed_split_of_small_classes(share, of_ten):
    """For any `test_share`, a class with one image has no test image. A class with two images has
    one test image."""
    classes = ["one"] + ["two"] * 2 + ["ten"] * 10
    train, test = (indices_of(split, classes, test_share=share) for split in ("train", "test"))
    assert sorted(train + test) == list(range(13))
    tested = [classes[index] for index in test]
    assert tested == ["two"] + ["ten"] * of_ten


@pytest.mark.parametrize("fields", [{"test_share": 0.3}, {"fold": "2/3"}])
def test_images_of_a_group_are_never_divided(fields):
    # Each of ten patients has three images, and every second patient is ill in one of them.
    classes = (["ill"] + ["well"] * 5) * 5
    train, test, tune_train, tune_val = (
        {index // 3 for index in indices_of(split, classes, groups=r"^(p\d+)_", **fields)}
        for split in HASHED
    )
    assert test and not train & test and len(train | test) == 10
    assert tune_val and not tune_train & tune_val and tune_train | tune_val == train


def test_each_image_is_tested_in_one_fold():
    tested = []
    for fold in ("1/3", "2/3", "3/3"):
        train, test = (indices_of(split, CLASSES, fold=fold) for split in ("train", "test"))
        assert sorted(train + test) == list(range(23))
        assert {CLASSES[index] for index in test} == {"ant", "bee", "cat"}
        tested += test
    assert sorted(tested) == list(range(23))


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


@pytest.mark.parametrize("groups", ["patient", r"(\d)[.]"], ids=["column", "pattern"])
def test_list_is_divided_by_a_column_or_a_pattern(groups, photos):
    """The patient of an ant is the last digit of its file's name."""
    lines = [f"ant/{number:02}.jpg,ant,{number % 10}" for number in range(12)]
    (photos / "all.csv").write_text("\n".join(["file,label,patient", *lines]))
    train, test = (
        {name.removesuffix(".jpg")[-1] for name in names_of(source)}
        for source in data.load("list", path=str(photos / "all.csv"), groups=groups, fold="1/4")
    )
    assert test and not train & test and len(train | test) == 10


def test_lists_have_no_other_hashed_splits(photos):
    (photos / "all.csv").write_text("ant/00.jpg,ant\nbee/00.jpg,bee")
    with pytest.raises(ValueError, match="one of train, test,.*split='val'"):
        data.file_list(photos / "all.csv", split="val")


def test_a_column_without_a_name_has_no_groups(photos):
    rows = [f"ant/{number:02}.jpg,ant" for number in range(12)]
    tests = []
    for header, start in (("file,label", ""), (",file,label", "{},"), ("file,label,", "")):
        lines = [header, *(start.format(number) + row for number, row in enumerate(rows))]
        (photos / "all.csv").write_text("\n".join(lines))
        tests.append(names_of(data.load_split("list", "test", path=str(photos / "all.csv"))))
    assert tests[0] == tests[1] == tests[2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"groups": r"^(p\d+)_"}, "in the name of each image.*'00.jpg'"),
        ({"groups": "0"}, "regular expression with one"),
        ({"groups": "("}, "regular expression with one"),
        ({"groups": r"\d*(x?)"}, "in the name of each image"),
        ({"groups": "([.])jpg"}, "classes with a single image or group"),
        ({"fold": "0/5"}, "`fold` must be"),
        ({"fold": "6/5"}, "`fold` must be"),
        ({"fold": "1/1"}, "`fold` must be"),
        ({"fold": "x"}, "`fold` must be"),
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
