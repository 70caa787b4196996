"""Tests of sources of images in folders of classes."""

import os

import numpy as np
import pytest
from PIL import Image

from keras_vit import data

from .helpers import encoded, jpeg, names_of, read_all, write_jpegs


def test_folder_is_sorted_by_class_and_file_name(photos):
    source = data.folder(photos)
    assert source.class_names == ("ant", "bee", "cat")
    examples = read_all(source)
    assert [example["image"].numpy() for example in examples] == [jpeg(i) for i in range(23)]
    assert [int(example["label"]) for example in examples] == [0] * 12 + [1] * 7 + [2] * 4
    assert source.name_of(12) == str(photos / "bee" / "00.jpg")


def test_split_subfolders_are_loaded(tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        for name in ("b", "a"):
            write_jpegs(tmp_path / split / name, count)
    train, test = data.load("folder", path=str(tmp_path))
    assert (train.num_examples, test.num_examples, train.class_names) == (6, 4, ("a", "b"))
    with pytest.raises(ValueError, match=r"split='val', subfolders=\['test', 'train'\]"):
        data.folder(tmp_path, "val")


def test_entries_that_are_not_images_are_skipped(photos, caplog):
    (photos / "ant" / "notes.txt").write_text("no image")
    (photos / "ant" / "._00.jpg").write_text("no image, but notes of macOS")
    (photos / "bee" / "deeper").mkdir()
    train, test = data.load("folder", path=str(photos))
    assert train.num_examples + test.num_examples == 23
    # Only one of the two splits logs it.
    assert caplog.text.count("skipped 3 entries that are not image files") == 1


def test_system_folders_are_no_classes(photos):
    for name in ("@eaDir", "__MACOSX", ".ipynb_checkpoints"):
        write_jpegs(photos / name, 1)
    assert data.folder(photos).class_names == ("ant", "bee", "cat")
    assert list(data.folder_splits(photos)) == [""]


def test_links_to_folders_are_followed(photos):
    (photos / "dog").symlink_to(photos / "bee")
    source = data.folder(photos)
    assert source.class_names == ("ant", "bee", "cat", "dog") and source.num_examples == 30


@pytest.mark.parametrize(("exif", "white_half"), [("auto", np.s_[:4]), ("off", np.s_[:, :4])])
def test_photos_are_rotated_by_exif_unless_switched_off(exif, white_half, photos):
    """Orientation 6 turns the stored image clockwise: its left half becomes the upper half."""
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:, :4] = 255
    tags = Image.Exif()
    tags[0x0112] = 6
    (photos / "ant" / "00.jpg").write_bytes(encoded(pixels, "JPEG", quality=100, exif=tags))
    batches = data.eval_batches(data.folder(photos), batch_size=1, image_size=8, exif=exif)
    images, *_ = next(iter(batches))
    assert images.numpy()[0][white_half].min() > 0.95


def test_images_without_classes_are_refused(tmp_path):
    for name in ("train/a", "test"):
        write_jpegs(tmp_path / name, 2)
    for load in (data.folder_splits, lambda path: data.folder(path, "test")):
        with pytest.raises(ValueError, match="must contain images as"):
            load(tmp_path)


def test_only_training_split_must_contain_every_class(tmp_path, caplog):
    for name in ("train/a", "train/b", "test/a"):
        write_jpegs(tmp_path / name, 1)
    train, test = data.load("folder", path=str(tmp_path))
    assert train.class_names == test.class_names == ("a", "b") and test.num_examples == 1
    assert "classes without examples in the test split: 1" in caplog.text
    with pytest.raises(ValueError, match=r"no examples of \['b'\]"):
        data.check_splits(test, train)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("nowhere", {}, "must be an existing folder"),
        ("photos", {"split": "half"}, "'half'"),
        ("photos", {"class_names": ["ant", "bee"]}, r"\['cat'\]"),
    ],
)
def test_rejects_unusable_folders(path, options, message, photos):
    with pytest.raises(ValueError, match=message):
        data.folder(photos.parent / path, **options)


@pytest.mark.parametrize(
    ("lines", "message"),
    [("ant\nbee\ncat\nant\n", r"\['ant'\] more than once"), ("\n", "a file without names")],
)
def test_rejects_bad_files_of_class_names(lines, message, photos):
    (photos / "names").write_text(lines)
    with pytest.raises(ValueError, match=message):
        data.load_split("folder", "train", path=str(photos), class_names=str(photos / "names"))


def test_images_of_other_splits_are_not_divided_by_a_hash(photos):
    (photos / "ant").rename(photos / "train")
    (photos / "bee").rename(photos / "val")
    assert data.load_split("images", "val", path=str(photos)).num_examples == 7
    with pytest.raises(ValueError, match="without subfolders for splits.*'test'"):
        data.load_split("images", "test", path=str(photos))


def test_both_unicode_forms_of_a_name_are_one_class(tmp_path):
    """An accented e in a file name can be one character, or a letter followed by a combining
    accent."""
    for split, name in (("train", "caf\u00e9"), ("test", "cafe\u0301")):
        write_jpegs(tmp_path / split / name, 1)
    train, test = data.load("folder", path=str(tmp_path))
    assert train.class_names == test.class_names == ("caf\u00e9",)
    assert read_all(test)[0]["image"] == jpeg(0)


def test_non_utf8_file_names_are_readable_and_printable(photos):
    folder = os.fsencode(photos) + b"/caf\xe9"
    os.mkdir(folder)
    for i in range(3):
        with open(folder + b"/\xe9t\xe9 %d.jpg" % i, "wb") as file:
            file.write(jpeg(i))
    source = data.folder(photos)
    assert source.class_names == ("ant", "bee", r"caf\xe9", "cat") and source.num_examples == 26
    # The first image of the class follows 12 images of ants and 7 of bees.
    assert read_all(source)[19]["image"] == jpeg(0)
    assert names_of(source)[19].encode().endswith(rb"caf\xe9/\xe9t\xe9 0.jpg")
    train, test = data.load("folder", path=str(photos), test_share=0.4)
    # The four classes have 5, 3, 1 and 2 test images.
    assert (train.num_examples, test.num_examples) == (15, 11)


def test_rejects_a_folder_that_cannot_be_listed(photos, monkeypatch):
    scandir = os.scandir

    def deny(path):
        if str(path).endswith("bee"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(ValueError, match="cannot be listed.*bee'$"):
        data.folder(photos)
