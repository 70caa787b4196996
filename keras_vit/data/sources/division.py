"""Divides images into a training and a test split by a hash of their names or groups."""

import collections
import contextlib
import dataclasses
import hashlib
import os
import re
import zlib
from collections.abc import Sequence

HASHED = ("train", "test", "tune_train", "tune_val")


@dataclasses.dataclass(frozen=True)
class Division:
    """A hash-based split of images.

    Sources with a hash-based split are folders of images, masks or depths without subfolders for
    splits, and a list that is `config.data.path`. The attributes are fields of `config.data`.

    Attributes:
        test_share: for folder, list, images, masks, depth: without own splits, the fraction of each
            class to hold out in "test"; "tune_val" is the same fraction of "train". Images that may
            have several classes, or have none, are divided like one class.
        split_seed: for folder, list, images, masks, depth: without own splits, the seed of the hash
            that selects the held-out images.
        groups: for folder, list, images, masks, depth: regular expression with one group, such as
            `^([^_]+)_`, for names of files; images with the same text there, for example of one
            patient, are never divided. With a slash, it is searched in the path below the folder.
            For a list, it may be the name of a column, such as `patient`.
        fold: for folder, list, images, masks, depth: "2/5" tests on the second of five folds
            instead of `test_share`.
    """

    test_share: float = 0.1
    split_seed: int = 0
    groups: str = ""
    fold: str = ""

    def __post_init__(self):
        if not 0 < self.test_share < 1:
            raise ValueError(
                f"`test_share` must be between 0 and 1. Received: test_share={self.test_share}"
            )
        numbers = re.fullmatch(r"(\d+)/(\d+)", self.fold)
        if self.fold and not (numbers and 1 <= int(numbers[1]) <= int(numbers[2]) > 1):
            raise ValueError(
                "`fold` must be the number of a fold and the number of folds, such as 1/5. "
                f"Received: fold={self.fold!r}"
            )

    def check_unused(self, split: str, path: str) -> None:
        """Raises a `ValueError` if a split that is stored would ignore the groups or the fold."""
        if split and (self.groups or self.fold):
            raise ValueError(
                "`groups` and `fold` apply to data without own splits: a folder without subfolders "
                "`train` and `test`, or --config.data.path=LIST.csv. Received: "
                f"groups={self.groups!r}, fold={self.fold!r}, split={split!r}, path={path!r}"
            )

    def indices(
        self,
        split: str,
        names: Sequence[str],
        classes: Sequence[str],
        groups: Sequence[str] = (),
        only_train: bool = False,
    ) -> list[int]:
        """Returns the indices of the images of a split in `HASHED`, in order.

        Args:
            split: "train" and "test" divide all images, "tune_train" and "tune_val" those of
                "train".
            names: names of the images.
            classes: class of each image.
            groups: group of each image; by default, `self.groups` is searched in its name.
            only_train: whether the images are those of "train", which "tune_train" and "tune_val"
                divide.
        """
        if split not in HASHED:
            raise ValueError(
                f"`split` must be one of {', '.join(HASHED)}. Received: split={split!r}"
            )
        # Hash names only, so that a split depends neither on the path of the folder nor, without
        # groups, on the other classes.
        units = groups or [self._unit(name, label) for name, label in zip(names, classes)]
        kept = list(range(len(names)))
        if not only_train:
            kept = self._part(kept, units, classes, split == "test", self.fold, "")
        if split.startswith("tune_"):
            kept = self._part(kept, units, classes, split == "tune_val", "", "tune/")
        if names and not kept:
            raise ValueError(
                "The split has no images, because classes with a single image or group are only "
                "used for training and others have too few: change --config.data.test_share, use "
                "fewer folds, or create subfolders `train` and `test`. Received: "
                f"split={split!r}, {self}"
            )
        return kept

    def _unit(self, name, label):
        """Returns what is never divided: the group of an image, or the image."""
        if not self.groups:
            return f"{label}/{name}"
        found = None
        with contextlib.suppress(re.error):
            found = re.search(self.groups, name if "/" in self.groups else os.path.basename(name))
        if not found or found.re.groups != 1 or not found[1]:
            raise ValueError(
                "`groups` must be a column of the list, or a regular expression with one (group) "
                f"that is in the name of each image. Received: groups={self.groups!r}, {name!r}"
            )
        return found[1]

    def _part(self, rows, units, classes, is_test, fold, prefix):
        """Divides rows by the hash of their units; returns those of the test or the training part.

        Each class is divided separately. The class of a unit is its most frequent one.
        """
        counts = collections.defaultdict(collections.Counter)
        for row in rows:
            counts[units[row]][classes[row]] += 1
        of_class = collections.defaultdict(list)
        for unit, counter in counts.items():
            of_class[max(sorted(counter), key=counter.get)].append(unit)
        test = set()
        for label, members in of_class.items():
            members.sort(key=lambda unit: _hash(f"{self.split_seed}/{prefix}{unit}"))
            if fold and len(members) > 1:
                number, folds = map(int, fold.split("/"))
                # Small classes start at different folds.
                test.update(members[(number + zlib.crc32(os.fsencode(label))) % folds :: folds])
            else:
                count = min(max(round(self.test_share * len(members)), 1), len(members) - 1)
                test.update(members[:count])
        return [row for row in rows if (units[row] in test) == is_test]


def _hash(text):
    return hashlib.blake2b(os.fsencode(text), digest_size=8).digest()
