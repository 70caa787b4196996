"""Masks: a class for each pixel."""

import re
import unicodedata
import zlib
from typing import ClassVar

import numpy as np
import tensorflow as tf

from keras_vit.data import images
from keras_vit.data.sources.text_files import lines_of
from keras_vit.data.targets.pixels import PixelValues, apply_to_bytes

IGNORED = 255
_SAMPLED = 16  # masks that are read for the summary of a run


class Masks(PixelValues):
    """A target is uint8 `(H, W)`: the class of each pixel, or 255 for pixels that do not count.

    A stored mask is an indexed PNG, whose indices are the classes; a gray PNG, whose values are
    the classes; any PNG with the colors of `mask_colors`; or integers `(H, W)` or, with equal
    channels, `(H, W, C)`.

    Attributes:
        mask_offset: number that is subtracted from the classes in the files; smaller classes are
            ignored. For example, 1 ignores class 0 (`reduce_zero_label` for ADE20K). 255 is always
            ignored.
        mask_colors: path of a text file with a line "R G B NAME" per class, in the order of the
            class numbers, for masks that store colors. Colors of lines with the name "ignored" do
            not count; all other colors in a mask are errors. Requires a `mask_offset` of 0.
    """

    defaults: ClassVar = {"mask_offset": 0, "mask_colors": ""}

    key = "mask"
    source_name = "masks"
    unknown = IGNORED

    def __init__(self, source, options):
        super().__init__(source, options)
        self.classes = len(source.class_names)
        if not 2 <= self.classes <= IGNORED:
            raise ValueError(
                "Masks need a source with 2 to 255 class names, such as data.name=masks; set "
                f"--config.data.class_names. Received: {self.classes} class names"
            )
        self.rule = (
            f"of the size of its image, with classes from 0 to {self.classes - 1} or 255 for "
            "ignored pixels, after --config.data.mask_offset is subtracted"
        )
        self._colors = None
        if options.mask_colors:
            self._colors = _read_colors(options.mask_colors, source.class_names)

    @staticmethod
    def check(options):
        if not 0 <= options.mask_offset < (1 if options.mask_colors else IGNORED):
            raise ValueError(
                "`mask_offset` must be from 0 to 254, and 0 with `mask_colors`, whose lines are "
                f"the classes. Received: mask_offset={options.mask_offset}, "
                f"mask_colors={options.mask_colors!r}"
            )

    def values(self, example):
        mask = example["mask"]
        if mask.dtype == tf.string:
            mask = self._decoded(mask)
        elif self._colors is not None:
            raise ValueError(
                "`mask_colors` must be '' for masks that are stored as class numbers. Received: "
                f"mask_colors={self.options.mask_colors!r}"
            )
        mask = tf.cast(mask, tf.int32)
        if mask.shape.rank == 3:
            mask = images.checked(
                mask[..., 0],
                tf.reduce_all(mask[..., :1] == mask),
                "a mask with colors must be a PNG file and needs --config.data.mask_colors; size:",
                tf.shape(mask)[:2],
            )
        offset = self.options.mask_offset
        if not offset:
            return mask
        has_class = (mask >= offset) & (mask != IGNORED)
        # The class 255 + offset, which no source has, stays invalid instead of becoming 255.
        classes = tf.where(mask == IGNORED + offset, mask, mask - offset)
        return tf.where(has_class, classes, IGNORED)

    def is_valid(self, values):
        return (values >= 0) & (values < self.classes) | (values == IGNORED)

    def problem_of_values(self, values):
        if self._colors is not None:
            return "colors that are not in --config.data.mask_colors"
        return f"classes {', '.join(map(str, np.unique(values)[:10]))}"

    def classes_of(self, example):
        classes = np.unique(self.values(example))
        return classes[classes != IGNORED]

    def summary(self, max_names=10):
        """Returns the classes with their shares of the pixels of some masks, evenly spaced."""
        names = list(map(str, self.source.class_names))
        ignored = []
        if self.source.read is not None:
            *shares, share_ignored = self._shares()
            names = [f"{name} {100 * share:.3g} %" for name, share in zip(names, shares)]
            ignored = [f"ignored {100 * share_ignored:.3g} %"]
        listed = names[:max_names] + ["..."] * (len(names) > max_names) + ignored
        return f"{self.classes} classes of pixels ({', '.join(listed)})"

    def _shares(self):
        """Returns the shares of the classes and of ignored pixels in up to 16 masks."""
        count = self.source.num_examples
        total = np.zeros(IGNORED + 1, np.int64)
        for index in np.unique(np.linspace(0, count - 1, _SAMPLED).astype(int)):
            try:
                target, _, _ = self.decode(self.source.read(tf.constant(index, tf.int64)))
            except tf.errors.OpError:  # the run reports files that cannot be read
                continue
            total += np.bincount(target.numpy().ravel(), minlength=IGNORED + 1)
        counts = np.append(total[: self.classes], total[IGNORED])
        return counts / max(counts.sum(), 1)

    def title(self, target):
        """Returns the three largest classes with their shares of the pixels."""
        counts = np.bincount(target[target != IGNORED], minlength=self.classes)
        best = [label for label in np.argsort(-counts)[:3] if counts[label]]
        names = self.source.class_names
        return "\n".join(f"{names[label]} {counts[label] / target.size:.2f}" for label in best)

    def picture(self, picture, target):
        return overlay(picture, target, self.classes)

    def _decoded(self, encoded):
        """Returns the values of a PNG file, int32 `(H, W, 3)`, or the classes of its colors, int32
        `(H, W)`."""
        is_png = images.starts_with(encoded, images.PNG_SIGNATURE)
        size = tf.strings.length(encoded)
        encoded = images.checked(encoded, is_png, "a mask must be a PNG file; size in bytes:", size)
        bits, color_type = tf.unstack(images.integers(encoded, 24, 2, tf.uint8))
        if self._colors is None:
            encoded = apply_to_bytes(_with_gray_palette, encoded, tf.string)
        # The decoder scales the values of all files to 16 bits. It sees 8 bits per color of a
        # palette.
        pixels = tf.cast(tf.io.decode_png(encoded, 3, tf.uint16), tf.int32)
        pixels //= 65535 // (2 ** tf.where(color_type == 3, 8, bits) - 1)
        return pixels if self._colors is None else self._class_of_colors(pixels)

    def _class_of_colors(self, pixels):
        """Returns the class of each color, or -1 for a color without a class."""
        codes, labels = self._colors
        wanted = _code(pixels)
        place = tf.searchsorted(codes, tf.reshape(wanted, [-1]))
        place = tf.reshape(tf.minimum(place, len(codes) - 1), tf.shape(wanted))
        is_known = (tf.gather(codes, place) == wanted) & tf.reduce_all(pixels <= 255, -1)
        return tf.where(is_known, tf.gather(labels, place), -1)


def _read_colors(path, class_names):
    """Returns the codes of the colors in a color table, sorted, and the class of each: int32
    `(colors,)`."""
    classes = len(class_names)
    lines = lines_of(path)
    matches = [re.fullmatch(r"(\d+)\s+(\d+)\s+(\d+)(?:\s+(.*))?", line) for line in lines]
    rows = [match.groups("") for match in matches if match]
    colors = np.array([row[:3] for row in rows], np.int64).reshape(-1, 3)
    names = np.array([unicodedata.normalize("NFC", row[3]) for row in rows], str)
    is_ignored = names == "ignored"
    codes = _code(colors)
    if np.sum(~is_ignored) != classes or colors.max() > 255 or len({*codes}) != len(lines):
        raise ValueError(
            f"`mask_colors` must be a text file with {classes} different lines R G B NAME, numbers "
            "from 0 to 255, one for each class, and any number of lines with the name ignored. "
            f"Received: {len(lines)} lines in {path!r}"
        )
    for found, name in zip(names[~is_ignored].tolist(), map(str, class_names)):
        if found not in ("", name):
            raise ValueError(
                "The names in `mask_colors` must be the class names, in their order. Received: "
                f"{found!r} in {path!r} instead of {name!r}"
            )
    order = np.argsort(codes)
    labels = np.where(is_ignored, IGNORED, np.cumsum(~is_ignored) - 1)
    return codes[order].astype("int32"), labels[order].astype("int32")


def _code(colors):
    """Returns one integer for each color `(..., 3)`."""
    return (colors[..., 0] * 256 + colors[..., 1]) * 256 + colors[..., 2]


def _with_gray_palette(encoded):
    """Returns a PNG file; if it is indexed, with another palette, in which color i is the gray
    value i.

    TensorFlow decodes the colors of an indexed file; with this palette, they are the indices.
    """
    if encoded[25:26] != b"\3":
        return encoded
    start = 8
    while encoded[start + 4 : start + 8] not in (b"PLTE", b""):
        start += 12 + int.from_bytes(encoded[start : start + 4], "big")
    end = start + 12 + int.from_bytes(encoded[start : start + 4], "big")
    colors = bytes(np.repeat(np.arange(2 ** min(encoded[24], 8), dtype=np.uint8), 3))
    chunk = b"PLTE" + colors
    length = len(colors).to_bytes(4, "big")
    checksum = zlib.crc32(chunk).to_bytes(4, "big")
    return encoded[:start] + length + chunk + checksum + encoded[end:]


def class_colors(classes: int) -> np.ndarray:
    """Returns a color in [0, 1] for each class, float32 `(classes, 3)`; class 0 is black.

    The colors are those of PASCAL VOC: bits 0, 3 and 6 of a class are the highest bits of red, and
    so on.
    """
    numbers = np.arange(classes)[:, None]
    colors = np.zeros((classes, 3), np.int64)
    for bit in range(3):
        colors |= ((numbers >> (3 * bit + np.arange(3))) & 1) << (7 - bit)
    return (colors / 255).astype("float32")


def overlay(picture: np.ndarray, mask: np.ndarray, classes: int) -> np.ndarray:
    """Returns the mean of a picture and the colors of a mask.

    Args:
        picture: float `(H, W, 3)` in [0, 1].
        mask: integers `(H, W)`; pixels with the value 255 keep the picture's color.
        classes: number of classes.
    """
    colored = (picture + class_colors(IGNORED + 1)[mask]) / 2
    return np.where((mask < classes)[..., None], colored, picture)
