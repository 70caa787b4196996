"""Images that are drawn when they are read: colored shapes, whose every factor is known and can be the label.

An image is a function of (seed, split, index) alone, in arithmetic that is exact or rounded as IEEE 754 says, so it is
the same on every machine. No image is stored, and there are 2^62 of each split.
"""

import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.sources import shape_outlines
from keras_vit.data.sources.shape_drawing import (
    BACKGROUND,
    CLASSES,
    COLORS,
    DRAWS,
    FIELDS,
    LAYERS,
    MAIN,
    STEP,
    TEXTURES,
    ShapeDrawing,
    draws_of,
    splitmix64,
)
from keras_vit.data.sources.source import Source

# The factors that may be labels: which draw of which layer.
_FACTORS = {
    "shape": (MAIN, "shape"),
    "column": (MAIN, "column"),
    "row": (MAIN, "row"),
    "size": (MAIN, "size"),
    "rotation": (MAIN, "rotation"),
    "color": (MAIN, "color"),
    "texture": (MAIN, "texture"),
    "background": (BACKGROUND, "color"),
    "background_texture": (BACKGROUND, "texture"),
    "distractors": (BACKGROUND, "level"),
    "noise": (MAIN, "level"),
}
FACTORS = {name: CLASSES[field] for name, (_, field) in _FACTORS.items()}
_WORDS = {"shape": shape_outlines.NAMES, "texture": TEXTURES, "background_texture": TEXTURES}
_TEST_EXAMPLES = 10_000
_SPLITS = {"train": 0, "tune_train": 0, "test": 1, "tune_val": 2}  # each number has images of its own
_KNOWN_LABELS = 2**20  # the most examples whose labels are computed beforehand


def shapes(
    split: str = "train", label: str = "shape", num_examples: int = 0, image_shape: Sequence[int] = (), seed: int = 0
) -> Source:
    """A source of images of shapes, drawn when they are read.

    The first examples of a split are the same however many there are: smaller training sets are parts of larger ones.

    Factors: the shape (disc, ring, half disc, crescent, triangle, square, star, cross); its place, whose center is
    within 0.35 to 0.65 of the width (`column`, 4 classes) and the height (`row`, 4); its `size`, a radius of 0.15 to
    0.35 of the shorter side (8); its `rotation` of 0 to 360 degrees (8), which a disc and a ring do not show; its
    `color` (8) and `texture` (4); the color of the `background`, another one than the shape's (8), and the
    `background_texture` (4); 0 to 3 `distractors`, small shapes of one color, which the shape may hide; and `noise`,
    uniform, of up to 0.1 of white (4). Each is uniform in its range, and all are independent but for the color of the
    background. The classes of what is continuous are equal parts of its range.

    Args:
        split: "train", "test", "tune_train" (the same as "train") or "tune_val", each with images of its own; or the
            first ones of it, "train[:1000]".
        label: a factor, a key of `FACTORS`; or several, whose combinations are the classes: "shape-color".
        num_examples: of train; 0 for 1,000,000. The other splits have 10,000.
        image_shape: `(H, W, C)`; () for (32, 32, 3). The colors of more than 3 channels repeat from the fourth on,
            those of one are levels of gray.
        seed: a non-negative int32; another one has other images.

    Returns:
        A `Source` of uint8 images. Up to 2^20 examples its labels are known without drawing them.

    Raises:
        ValueError: the split, a factor, a number or the shape is not one of these.
    """
    names = label.split("-")
    if not set(names) <= set(FACTORS) or len(set(names)) < len(names):
        raise ValueError(
            f"The label must be a factor, or several different ones joined by '-': {', '.join(FACTORS)}. "
            f"Received: label={label!r}"
        )
    image_shape = tuple(image_shape) or (32, 32, 3)
    if len(image_shape) != 3 or not all(isinstance(side, int) and side > 0 for side in image_shape):
        raise ValueError(
            f"`image_shape` must be (height, width, channels), positive integers. Received: image_shape={image_shape}"
        )
    if not 0 <= seed < 2**31:
        raise ValueError(f"The seed must be an int32, 0 or more. Received: seed={seed}")
    stream, count = _parse_split(split, num_examples)
    key = _key(seed, stream)
    drawing = ShapeDrawing(image_shape)

    def read(index):
        first = tf.constant((key + STEP) % 2**64, tf.uint64)
        state = splitmix64(first + tf.cast(index, tf.uint64) * tf.constant(STEP, tf.uint64))
        draws = draws_of(state, 0, DRAWS)
        target = _combined(names, tf.reshape(draws, (len(FIELDS), LAYERS)), tf.floor, tf.math.floormod)
        return {"image": drawing(state, draws), "label": tf.cast(target, tf.int64)}

    return Source(
        read,
        count,
        _class_names(names),
        labels=_labels(names, key, count) if count <= _KNOWN_LABELS else None,
        name_of=f"shapes {split} example {{}}".format,
        # A mirrored shape has another place and rotation, and a crop another size.
        options={"train_crop": "none", "eval_crop": "none", "flip": "off"},
    )


def _parse_split(split, num_examples):
    """The number of a split's stream of images, and how many examples it has."""
    match = re.fullmatch(r"(\w+)(?:\[:(\d+)\])?", split)
    if not match or match[1] not in _SPLITS:
        raise ValueError(
            f"The splits of the shapes are {', '.join(_SPLITS)}, or the first ones of a split, train[:1000]. "
            f"Received: split={split!r}"
        )
    if not 0 <= num_examples < 2**62:
        raise ValueError(f"`num_examples` must be in [0, 2^62). Received: num_examples={num_examples}")
    stream = _SPLITS[match[1]]
    whole = _TEST_EXAMPLES if stream else num_examples or 1_000_000
    count = whole if match[2] is None else int(match[2])
    if not 0 < count <= whole:
        raise ValueError(f"The split {match[1]!r} has {whole} examples. Received: split={split!r}")
    return stream, count


def _class_names(names):
    result = [""]
    for name in names:
        words = _WORDS.get(name, tuple(map(str, range(FACTORS[name]))))
        result = [f"{before}-{word}".lstrip("-") for before in result for word in words]
    return tuple(result)


def _combined(names, draws, floor, floormod):
    """The class of a combination of factors, a float, with the functions of TensorFlow or numpy.

    Args:
        names: of the factors.
        draws: in [0, 1), `(fields, LAYERS)` or `(fields, LAYERS, N)`.
    """
    result = 0.0
    for name in names:
        layer, field = _FACTORS[name]
        value = draws[FIELDS.index(field)]
        if name == "background":  # any color but the shape's
            value = floormod(floor(value[MAIN] * COLORS) + 1 + floor(value[layer] * (COLORS - 1)), COLORS)
        else:
            value = floor(value[layer] * FACTORS[name])
        result = result * FACTORS[name] + value
    return result


def _labels(names, key, count):
    """The labels of the first examples, int64 `(count,)`, without drawing an image."""
    state = splitmix64(np.uint64(key) + np.arange(1, count + 1, dtype="uint64") * np.uint64(STEP))
    draws = np.zeros((len(FIELDS), LAYERS, count), "float32")
    for layer, field in {_FACTORS[name] for name in names} | {(MAIN, "color")}:
        number = np.uint64((FIELDS.index(field) * LAYERS + layer + 1) * STEP % 2**64)
        draws[FIELDS.index(field), layer] = (splitmix64(state + number) >> np.uint64(40)) * 2.0**-24
    return _combined(names, draws, np.floor, np.mod).astype("int64")


def _key(seed, stream):
    """The 64 bits of a seed and a split."""
    first = splitmix64(np.array([seed + STEP], "uint64"))
    return int(splitmix64(first + np.uint64((stream + 1) * STEP % 2**64))[0])
