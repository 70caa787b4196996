"""Broken files: counted, named with a reason, too many end the run; and the scan that finds them all beforehand."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data


@pytest.fixture
def broken(photos, images_of):
    (photos / "ant" / "03.jpg").write_bytes(images_of(3)[:300])
    (photos / "bee" / "01.jpg").write_text("this is no image")
    (photos / "cat" / "02.jpg").write_bytes(b"")
    return {str(photos / name) for name in ("ant/03.jpg", "bee/01.jpg", "cat/02.jpg")}


def test_broken_files_are_named_once_with_a_reason(photos, broken):
    source, said = data.folder(photos), []
    some = {"batch_size": 5, "seed": 4, "image_size": 8}
    bad = data.BadExamples(source, max_share=0.5, warn=said.append, **some)
    actual = sum(
        bad.update(step, weights) for step, (*_, weights) in enumerate(data.train_batches(source, **some).take(14))
    )
    assert bad.count == len(said) == 3
    assert actual in range(3 * 3, 3 * 4 + 1)  # 70 examples: three epochs and a bit
    for name in broken:
        (line,) = [line for line in said if name in line]
        assert line.split(name)[1].strip(": ")


def test_a_resumed_run_names_the_same_files(photos, broken):
    source, said = data.folder(photos), []
    some = {"batch_size": 5, "seed": 4, "image_size": 8}
    bad = data.BadExamples(source, max_share=0.5, warn=said.append, **some)
    for step, (*_, weights) in enumerate(data.train_batches(source, start_step=30, **some).take(8), 30):
        bad.update(step, weights)
    assert {name for name in broken for line in said if name in line} == broken


def test_evaluation_names_broken_files_and_no_padding(photos, broken):
    source, said = data.folder(photos), []
    bad = data.BadExamples(source, batch_size=8, image_size=8, max_share=0.5, warn=said.append)
    for step, (*_, weights) in enumerate(data.eval_batches(source, batch_size=8, image_size=8)):
        bad.update(step, weights)
    assert bad.count == 3 and all(any(name in line for line in said) for name in broken)


@pytest.mark.parametrize("every", [1, 2])
def test_broken_files_in_every_batch_hold_nothing_up(photos, every):
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))):
        if number % every == 0:
            path.write_text("this is no image")
    batches = list(data.eval_batches(data.folder(photos), batch_size=4, image_size=8))
    weights = np.concatenate([weights for *_, weights in batches])
    assert weights.tolist() == [float(number % every != 0) for number in range(23)] + [0]
    assert all(np.any(image) == bool(weight) for images, _, w in batches for image, weight in zip(images, w))
    assert len(list(data.train_batches(data.folder(photos), batch_size=4, seed=0, image_size=8).take(7))) == 7


def test_more_than_the_allowed_share_ends_the_run(photos, broken):
    source = data.folder(photos)
    for share, allowed in ((0.1, 2), (0.14, 3)):
        bad = data.BadExamples(source, batch_size=23, image_size=8, max_share=share, warn=lambda line: None)
        (_, _, weights), = data.eval_batches(source, batch_size=23, image_size=8)  # fmt: skip
        if allowed == 3:
            assert bad.update(0, weights) == 3
        else:
            with pytest.raises(ValueError, match=r"More than 10 % of 23 .*verify_data.*3 bad examples"):
                bad.update(0, weights)


def test_after_ten_names_only_counts_are_said():
    images = np.zeros([100, 4, 4, 3], np.uint8)
    sound, said = data.arrays(images, np.zeros(100, int), ["a"]), []
    source = dataclasses.replace(sound, read=lambda i: {"image": sound.read(i)["image"], "label": i + 1})
    bad = data.BadExamples(source, batch_size=100, max_share=1.0, warn=said.append)
    bad.update(0, np.zeros(100))
    assert len([line for line in said if "example " in line and "counted" in line]) == 10
    assert said[10:] == ["20 bad examples so far", "40 bad examples so far", "80 bad examples so far"]


def test_an_example_without_a_right_answer_is_not_bad():
    source = data.arrays(np.zeros([4, 4, 4, 3], np.uint8), np.zeros(4, int), ["a"])
    source = dataclasses.replace(
        source, read=lambda i: {"image": tf.zeros([4, 4, 3], tf.uint8), "label": tf.range(i % 2)}
    )
    bad = data.BadExamples(source, batch_size=4, max_share=0.0)
    (*_, weights), = data.eval_batches(source, batch_size=4)  # fmt: skip
    assert weights.numpy().tolist() == [0, 1, 0, 1]
    assert bad.update(0, weights) == 0 and bad.count == 0


def test_the_scan_finds_what_is_broken_twice_or_empty(photos, broken, images_of):
    (photos / "bee" / "twin.jpg").write_bytes(images_of(0))
    (photos / "dog").mkdir()
    report = data.verify(data.folder(photos))
    assert set(report["bad"]) == set(report["reasons"]) == broken and report["examples"] == 24
    assert report["reasons"][str(photos / "cat" / "02.jpg")] == "the file is empty"
    assert report["duplicates"] == [[str(photos / "ant" / "00.jpg"), str(photos / "bee" / "twin.jpg")]]
    assert report["empty_classes"] == ["dog"]


def test_the_scan_bounds_the_size_of_images(photos):
    assert len(data.verify(data.folder(photos), max_megapixels=0.0005)["bad"]) == 23
