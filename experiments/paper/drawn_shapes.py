"""The dataset "shapes": generated images of colored shapes. Any factor, such as the color or the
size of the shape, can be the label.

An image depends only on its shape `(H, W, C)`, the seed, the split and the index.
"""

from collections.abc import Sequence

import shape_drawing
import tensorflow as tf
from shape_drawing import BACKGROUND, COLORS, MAIN, SHAPES, TEXTURES, field_value, uint64

from keras_vit import data
from keras_vit.data import order
from keras_vit.data.sources.source import Source, parse_split

# The factors that can be labels: their layer, field and number of classes.
_FACTORS = {
    "shape": (MAIN, "shape", 8),
    "column": (MAIN, "column", 4),
    "row": (MAIN, "row", 4),
    "size": (MAIN, "size", 8),
    "rotation": (MAIN, "rotation", 8),
    "color": (MAIN, "color", COLORS),
    "texture": (MAIN, "texture", 4),
    "background": (BACKGROUND, "color", COLORS),
    "background_texture": (BACKGROUND, "texture", 4),
    "distractors": (BACKGROUND, "level", 4),
    "noise": (MAIN, "level", 4),
}
FACTORS = {name: classes for name, (_, _, classes) in _FACTORS.items()}
_WORDS = {"shape": SHAPES, "texture": TEXTURES, "background_texture": TEXTURES}
_TEST_EXAMPLES = 10_000
# Each number selects a random stream.
_STREAMS = {"train": 0, "tune_train": 0, "test": 1, "tune_val": 2}
_KNOWN_LABELS = 2**20  # up to this many labels are computed in advance


def shapes(
    split: str = "train",
    label: str = "",
    *,
    num_examples: int = 0,
    image_shape: Sequence[int] = (),
    split_seed: int = 0,
) -> Source:
    """Returns a source of generated images of shapes.

    Importing this module registers the dataset "shapes". Smaller training sets are prefixes of
    larger ones.

    Factors, with their number of classes:

        shape (8)               disc, ring, half disc, crescent, triangle, square, star, cross
        column (4), row (4)     center of the shape, 0.35 to 0.65 of the width and height
        size (8)                radius, 0.15 to 0.35 of the shorter side
        rotation (8)            0 to 360 degrees, unseen for discs and rings of the texture "solid"
        color (8), texture (4)  color and pattern of the shape
        background (8)          color of the background
        background_texture (4)  pattern of the background
        distractors (4)         number of small shapes, 0 to 3, which the shape may cover
        noise (4)               amplitude of uniform noise, up to 10 % of the intensity range

    Factors are uniformly distributed and independent, but the background never has the color of the
    shape. The classes of a continuous factor are equal parts of its range.

    Args:
        split: "train", "test", "tune_train" (the same as "train") or "tune_val"; "train[:1000]"
            selects the first 1,000 images.
        label: a factor; or several different factors joined by "-", such as "shape-color", for one
            class per combination of their values; "" for the shape.
        num_examples: size of the training split; 0 for 1,000,000. "test" and "tune_val" have 10,000
            images.
        image_shape: `(H, W, C)`; () for (32, 32, 3). With one channel, colors are gray levels; with
            more than three, the channels repeat.
        split_seed: a non-negative int32 that selects the images.

    Returns:
        A `Source` of uint8 images. Its `labels` are None for splits of more than 2^20 examples.

    Raises:
        ValueError: the split, a factor, a number or the image shape is invalid.
    """
    names = (label or "shape").split("-")
    image_shape = tuple(image_shape) or (32, 32, 3)
    _check(label, names, num_examples, image_shape, split_seed)
    train = num_examples or 1_000_000
    sizes = {
        "train": train,
        "tune_train": train,
        "test": _TEST_EXAMPLES,
        "tune_val": _TEST_EXAMPLES,
    }
    name, count = parse_split("shapes", split, sizes)
    key = int(order.splitmix64(order.splitmix64(uint64(split_seed), 0), _STREAMS[name]))
    draw = shape_drawing.drawing(image_shape)

    def read(index):
        state = order.splitmix64(uint64(key), index)
        return {"image": draw(state), "label": _label(names, state)}

    states = order.splitmix64(uint64(key), tf.range(min(count, _KNOWN_LABELS), dtype=tf.int64))
    return Source(
        read,
        count,
        _class_names(names),
        labels=_label(names, states).numpy() if count <= _KNOWN_LABELS else None,
        name_of=f"shapes {split} example {{}}".format,
        # Flips change the position and rotation of a shape, and crops change its position and size.
        options={"train_crop": "none", "eval_crop": "none", "flip": "off"},
    )


data.SOURCES["shapes"] = shapes


def _check(label, names, num_examples, image_shape, split_seed):
    """Raises a `ValueError` if an argument of `shapes` is invalid; `names` are the factors in
    `label`."""
    if not set(names) <= set(FACTORS) or len(set(names)) < len(names):
        raise ValueError(
            "`label` must be one or more different factors, joined by '-'. The factors are "
            f"{', '.join(FACTORS)}. Received: label={label!r}"
        )
    if len(image_shape) != 3 or not all(isinstance(side, int) and side > 0 for side in image_shape):
        raise ValueError(
            "`image_shape` must be (height, width, channels), positive integers. Received: "
            f"image_shape={image_shape}"
        )
    if not 0 <= split_seed < 2**31:
        raise ValueError(
            f"`split_seed` must be an int32, 0 or more. Received: split_seed={split_seed}"
        )
    if not 0 <= num_examples < 2**62:
        raise ValueError(
            f"`num_examples` must be in [0, 2^62). Received: num_examples={num_examples}"
        )


def _class_names(names):
    """Returns a name for each combination of the factors in `names`, such as "disc-3"."""
    combinations = [""]
    for name in names:
        words = _WORDS.get(name, tuple(map(str, range(FACTORS[name]))))
        combinations = [f"{start}-{word}".lstrip("-") for start in combinations for word in words]
    return tuple(combinations)


def _label(names, state):
    """Returns the int64 class of each state. A class is a combination of the factors in `names`."""
    result = 0.0
    for name in names:
        layer, field, classes = _FACTORS[name]
        value = tf.floor(field_value(state, layer, field) * classes)
        if name == "background":  # any color but the shape's
            other = tf.floor(field_value(state, layer, field) * (classes - 1)) + 1
            shape_color = tf.floor(field_value(state, MAIN, field) * classes)
            value = tf.math.floormod(shape_color + other, classes)
        result = result * classes + value
    return tf.cast(result, tf.int64)
