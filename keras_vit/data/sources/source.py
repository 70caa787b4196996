"""The interface of all sources: labeled images that are read by index or in order."""

import collections
import dataclasses
import functools
import os
import re
import unicodedata
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.shards import Shards

# The default value of a white pixel, by dtype.
_WHITE = {"uint8": 255, "uint16": 65535}


@dataclasses.dataclass(frozen=True)
class Source:
    """A dataset of labeled images.

    Attributes:
        read: function, used inside `tf.data`, that maps a scalar int64 tensor in [0, num_examples)
            to an example `{"image": ..., "label": ...}`; `None` if examples can only be read in
            order. The image is a scalar string (an encoded image), a string tensor `(P,)` (encoded
            images of one size, whose channels are concatenated), or pixel values `(H, W, C)` of any
            dtype. The label is an int64 scalar, or a vector of all correct classes, which may be
            empty; see `empty_is_negative`.
        num_examples: number of examples.
        class_names: class names, in the order of the labels.
        max_value: value of a white pixel, above 0; usually 255, but 16 for scikit-learn's digits.
        shards: the `Shards` to read in order, if `read` is `None`.
        name_of: function that maps an index to a human-readable name, such as a file name or a
            record number.
        labels: integers `(N,)`; or Booleans `(N, classes)` if `multi_label` is set; or `None` if
            they are unknown before the examples are read.
        options: values that replace "auto" in the fields of `Options`.
        checksum: function that returns an integer to detect changed data: a checksum of the pixels
            for arrays, or of file names and sizes for files. The default function returns 0.
        stored: function that returns `(name, start, stop)` of each range of stored examples, such
            as records of a file, to find common examples of two splits; nothing if unknown.
        empty_is_negative: whether an example with an empty label is a negative example of every
            class. If False, it has no label, and gets weight 0.
        multi_label: whether the source was declared to have images with any number of classes,
            which are learned with the sigmoid loss only.
        finds_classes: whether the class names were found in this split, so that they must be given
            to other splits.
        target: name of the target kind of the examples, a key of `TARGETS`; any source can be used
            without targets.
    """

    read: Callable | None
    num_examples: int
    class_names: tuple
    max_value: float = 255
    shards: Shards | None = None
    name_of: Callable = "example {}".format
    labels: np.ndarray | None = None
    options: dict = dataclasses.field(default_factory=dict)
    checksum: Callable = int
    stored: Callable = tuple
    empty_is_negative: bool = True
    multi_label: bool = False
    finds_classes: bool = False
    target: str = "classes"

    def short_name(self, index: int) -> str:
        """Returns an example's name without folders, for the title of a picture; "" for the default
        name."""
        name = self.name_of(index)
        return "" if name == f"example {index}" else name.rpartition("/")[2]

    @functools.cached_property
    def example_spec(self) -> dict[str, tf.TensorSpec]:
        """The `tf.TensorSpec` of each value of a stored example."""
        if self.shards is not None:
            return tf.data.Dataset.from_tensors("").map(self.shards.parse).element_spec
        return tf.data.Dataset.range(1).map(self.read).element_spec

    @functools.cached_property
    def image_spec(self) -> tf.TensorSpec:
        """The `tf.TensorSpec` of a stored image."""
        return self.example_spec["image"]

    @property
    def is_encoded(self) -> bool:
        """True if the stored images are encoded, for example as JPEG."""
        return self.image_spec.dtype == tf.string

    @property
    def pixel_shape(self) -> tf.TensorShape:
        """The shape `(H, W, C)` of stored arrays, with None for what is unknown, as for files."""
        shape = self.image_spec.shape
        return shape if shape.rank == 3 else tf.TensorShape([None] * 3)

    @property
    def stores_class_numbers(self) -> bool:
        """True if the stored masks are class numbers, and neither files nor colors."""
        return self.target == "masks" and self.example_spec["mask"].dtype != tf.string

    def members_of(self, label: int) -> np.ndarray:
        """Returns the indices of the examples of a class; the labels must be known."""
        labels = np.asarray(self.labels)
        return np.flatnonzero(labels[:, label] if self.multi_label else labels == label)

    def class_counts(self) -> np.ndarray:
        """Returns the number of examples of each class; the labels must be known."""
        labels = np.asarray(self.labels)
        if self.multi_label:
            return labels.sum(0)
        return np.bincount(labels, minlength=len(self.class_names))

    def describe(self) -> dict:
        """Returns a JSON-serializable description of the source, without its examples."""
        shape = self.image_spec.shape
        return {
            "num_examples": int(self.num_examples),
            "class_names": [*map(str, self.class_names)],
            "options": self.options,
            "empty_is_negative": self.empty_is_negative,
            "max_value": np.asarray(self.max_value).item(),
            "image": {
                "shape": None if shape.rank is None else shape.as_list(),
                "dtype": self.image_spec.dtype.name,
            },
        }

    @classmethod
    def from_description(cls, description: Mapping) -> "Source":
        """Returns a source with the properties of the source that `describe` described, but without
        its examples."""
        names = ("num_examples", "options", "max_value", "empty_is_negative")
        fields = {name: description[name] for name in names}
        source = cls(_read_nothing, class_names=tuple(description["class_names"]), **fields)
        vars(source)["image_spec"] = tf.TensorSpec(**description["image"])  # the cached property
        return source


def _read_nothing(index):
    raise ValueError(
        "The data of a run must be loaded with `data.from_config`. Received: only its description"
    )


def subset(source: Source, indices: Sequence[int] | np.ndarray) -> Source:
    """Returns a source with the examples at `indices`, in this order.

    Raises:
        ValueError: `source` can only be read in order, `indices` is empty or not one-dimensional,
            or an index is out of range.
    """
    indices = np.asarray(indices)
    read = source.read
    if read is None:
        raise ValueError(
            "`source` must be readable by index. Received: a source that can only be read in order"
        )
    is_vector = indices.ndim == 1 and indices.size and indices.dtype.kind in "iu"
    if not is_vector or indices.min() < 0 or indices.max() >= source.num_examples:
        raise ValueError(
            "`indices` must be a non-empty vector of integers from 0 to "
            f"{source.num_examples - 1}; for a mask, use np.flatnonzero. Received: "
            f"{indices.dtype} of shape {indices.shape}"
        )
    index_of = tf.constant(indices, tf.int64)
    return dataclasses.replace(
        source,
        read=lambda index: read(index_of[index]),
        num_examples=len(indices),
        name_of=lambda index: source.name_of(int(indices[index])),
        labels=None if source.labels is None else np.asarray(source.labels)[indices],
        stored=tuple,
    )


def joined(first: Source, second: Source) -> Source:
    """Returns a source with the examples of two sources with the same classes, one after the other.

    Raises:
        ValueError: a source can only be read in order.
    """
    read_first = first.read
    read_second = second.read
    if read_first is None or read_second is None:
        raise ValueError(
            "Splits of TFDS and TFRecords cannot be joined; for TFDS, set a split such as "
            "train+test in the run's config. Received: a source that can only be read in order"
        )
    start = first.num_examples
    has_labels = first.labels is not None and second.labels is not None
    return dataclasses.replace(
        second,
        read=lambda i: tf.cond(i < start, lambda: read_first(i), lambda: read_second(i - start)),
        num_examples=start + second.num_examples,
        name_of=lambda i: first.name_of(i) if i < start else second.name_of(i - start),
        labels=np.concatenate([first.labels, second.labels]) if has_labels else None,
        stored=lambda: (*first.stored(), *second.stored()),
    )


def parse_split(dataset, split, splits):
    """Parses "train" or "train[:100]"; returns the name of the split and the number of examples to
    use.

    `splits` maps the names of all splits to their numbers of examples.
    """
    match = re.fullmatch(r"(\w+)(?:\[:(\d+)\])?", split)
    if not match or match[1] not in splits:
        raise ValueError(
            f"The splits of {dataset} are {', '.join(splits)}, or the first examples of a split, "
            f"as in train[:100]. Received: split={split!r}"
        )
    whole = splits[match[1]]
    count = int(match[2] or whole)
    if not 0 < count <= whole:
        raise ValueError(f"The split {match[1]!r} has {whole} examples. Received: split={split!r}")
    return match[1], count


def check_pattern(split, path, pattern):
    """Raises a `ValueError` if a split of files still has its default, and no file matches the
    pattern."""
    if split in ("train", "test") and not tf.io.gfile.glob(pattern):
        raise ValueError(
            "--config.data.train_split and --config.data.test_split must be lists of files, as in "
            "train_split=train.csv, or TFRecords in `path`, as in train_split='train-*'. "
            f"Received: {split}_split={split!r}, path={path!r}"
        )


def check_names(class_names):
    """Returns class names as a tuple, normalized to NFC like folder names; raises a `ValueError`
    for duplicates."""
    names = tuple(unicodedata.normalize("NFC", str(name)) for name in class_names)
    twice = sorted({name for name, count in collections.Counter(names).items() if count > 1})
    if twice:
        raise ValueError(f"Class names must be unique. Received: {twice[:10]} more than once")
    return names


def check_labels(labels, class_names):
    """Raises a `ValueError` unless every label, in an integer array `(N,)`, has a class name."""
    if len(labels) and (labels.min() < 0 or labels.max() >= len(class_names)):
        raise ValueError(
            f"Labels of {len(class_names)} classes must be from 0 to {len(class_names) - 1}. "
            f"Received: labels from {labels.min()} to {labels.max()}"
        )


def label_reader(labels: np.ndarray) -> Callable:
    """Returns a function that maps an index to the label of an example, as in `Source.read`."""
    if labels.ndim == 2:
        rows = tf.constant(labels, tf.bool)
        return lambda index: tf.where(rows[index])[:, 0]
    numbers = tf.constant(labels, tf.int64)
    return lambda index: numbers[index]


def checksum_of(paths, moves=False):
    """Returns a checksum of file names, the names of their folders, and the sizes of local files.

    If `moves`, the name of the folder that contains all files may change.
    """
    checksum = 0
    parts = [path.split("/") for path in paths]
    depth = -2
    if moves:
        depth = len(os.path.commonprefix([names[:-1] for names in parts]))  # noqa: RUF071 (lists)
    for path, names in zip(paths, parts):
        size = os.stat(path).st_size if os.path.exists(path) else -1
        name = "/".join(names[depth:])  # independent of the location of the dataset
        checksum = zlib.crc32(f"{name} {size}\n".encode("utf-8", "surrogateescape"), checksum)
    return checksum


def white_of(dtype, max_value=0):
    """Returns the value of a white pixel: `max_value`, or the default for the dtype if `max_value`
    is 0."""
    white = max_value or _WHITE.get(np.dtype(dtype).name, 0)
    if not 0 < white < np.inf:
        raise ValueError(
            "`max_value`, the value of a white pixel, must be finite and above 0; only "
            f"{' and '.join(_WHITE)} have a default. Received: max_value={max_value}, "
            f"dtype={np.dtype(dtype)}"
        )
    return white
