"""What every source of examples is: labeled images that can be read by index, or from the start."""

import collections
import dataclasses
import functools
import logging
import os
import re
import unicodedata
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.shards import Shards

log = logging.getLogger(__name__)

# The value of white by the dtype of the values.
WHITE = {"uint8": 255, "uint16": 65535}


@dataclasses.dataclass(frozen=True)
class Source:
    """Labeled images.

    Attributes:
        read: from a scalar int64 tensor in [0, num_examples) to an example, `{"image": ..., "label": int64}`; runs
            inside `tf.data`. The image is a scalar string, an encoded image; or string (P,), encoded images of one
            size whose channels follow one another; or values (H, W, C) of any dtype. The label is a scalar, or a vector
            of every class that counts as right, possibly empty. `None` where there is no access by index.
        num_examples: how many there are.
        class_names: the name of each label, in order.
        max_value: the value of a white pixel, above 0; 255 for most, 16 for the digits.
        shards: only without `read`: the `Shards` that the examples are read from in order.
        name_of: from an int index to what a person calls the example: a file, a record.
        labels: `(N,)` integers where they are known without reading the examples, else `None`.
        options: the values of `Options` for its images wherever a field is "auto".
        checksum: gives an integer that differs where the stored examples do, from the names and sizes of files.
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

    def short_name(self, index: int) -> str:
        """The name of an example for a picture: that of its file, "" if it only has a number."""
        name = self.name_of(index)
        return "" if name == f"example {index}" else name.rpartition("/")[2]

    @functools.cached_property
    def image_spec(self) -> tf.TensorSpec:
        """The `tf.TensorSpec` of an image as it is stored."""
        if self.shards is not None:
            return tf.data.Dataset.from_tensors("").map(self.shards.parse).element_spec["image"]
        return tf.data.Dataset.range(1).map(self.read).element_spec["image"]

    @property
    def is_encoded(self) -> bool:
        """Whether images are the bytes of files, to be decoded."""
        return self.image_spec.dtype == tf.string


def subset(source: Source, indices: Sequence[int] | np.ndarray) -> Source:
    """A source of some examples of another one, which has access by index, in the order of `indices`."""
    indices, read = np.asarray(indices), source.read
    if read is None:
        raise ValueError("Only a source with access by index has subsets. Received: a source that is read in order")
    if indices.ndim != 1 or not len(indices) or indices.min() < 0 or indices.max() >= source.num_examples:
        raise ValueError(f"Indices must be in 0 to {source.num_examples - 1}. Received: {indices.size} indices")
    index_of = tf.constant(indices, tf.int64)
    return dataclasses.replace(
        source,
        read=lambda index: read(index_of[index]),
        num_examples=len(indices),
        name_of=lambda index: source.name_of(int(indices[index])),
        labels=None if source.labels is None else np.asarray(source.labels)[indices],
    )


def parse_split(dataset, split, splits):
    """The split that is named, as "train" or "train[:100]", and how many of its first examples; `splits` has sizes."""
    match = re.fullmatch(r"(\w+)(?:\[:(\d+)\])?", split)
    if not match or match[1] not in splits:
        raise ValueError(
            f"The splits of the {dataset} are {', '.join(splits)}, or the first examples of a split, train[:100]. "
            f"Received: split={split!r}"
        )
    whole = splits[match[1]]
    count = whole if match[2] is None else int(match[2])
    if not 0 < count <= whole:
        raise ValueError(f"The split {match[1]!r} has {whole} examples. Received: split={split!r}")
    return match[1], count


def check_splits(train: Source, test: Source) -> None:
    """Raises a ValueError unless two sources have the same classes and training has examples of each of them.

    A class without test examples is only logged. Both are known if the labels are, without reading the examples.
    """
    if train.class_names != test.class_names:
        only_train = sorted(set(train.class_names) - set(test.class_names))
        only_test = sorted(set(test.class_names) - set(train.class_names))
        raise ValueError(
            "The training and the test split must have the same classes. "
            f"Received: only in train={only_train[:10]}, only in test={only_test[:10]}"
        )
    missing = []
    for source in (train, test):
        counts = np.ones(1) if source.labels is None else np.bincount(source.labels, minlength=len(source.class_names))
        missing.append([name for name, count in zip(source.class_names, counts) if not count])
    if missing[0]:
        raise ValueError(
            "Every class needs examples in the training split. Integer labels start at 0; a folder of a class must not "
            f"be empty. Received: none of {missing[0][:10]}"
        )
    if missing[1]:
        log.warning(
            "%d classes have no examples in the test split (for a folder another test_share or split_seed, or "
            "subfolders `train` and `test`, may change it): %s", len(missing[1]), missing[1][:10],
        )  # fmt: skip


def check_names(class_names):
    """The names of classes as a tuple, each in the same Unicode form (NFC) as those of folders; all must differ."""
    names = tuple(unicodedata.normalize("NFC", str(name)) for name in class_names)
    twice = sorted({name for name, count in collections.Counter(names).items() if count > 1})
    if twice:
        raise ValueError(f"Every class needs a name of its own. Received: {twice[:10]} more than once")
    return names


def check_labels(labels, class_names):
    """Raises a ValueError unless all labels, integers `(N,)`, have a name."""
    if len(labels) and (labels.min() < 0 or labels.max() >= len(class_names)):
        raise ValueError(
            f"Labels of {len(class_names)} classes are 0 to {len(class_names) - 1}. "
            f"Received: labels from {labels.min()} to {labels.max()}"
        )


def checksum_of(paths):
    """A checksum of the names of files, their folder's included, and of their sizes; remote files have no size here."""
    checksum = 0
    for path in paths:
        size = os.stat(path).st_size if "://" not in path and os.path.exists(path) else -1
        name = "/".join(path.split("/")[-2:])  # the same wherever the data lie
        checksum = zlib.crc32(f"{name} {size}\n".encode("utf-8", "surrogateescape"), checksum)
    return checksum


def white_of(dtype, max_value=0):
    """The value of white for values of a dtype: `max_value`, or with 0 the largest of an unsigned integer."""
    white = max_value or WHITE.get(np.dtype(dtype).name, 0)
    if white <= 0:
        raise ValueError(
            f"`max_value`, the value of white, must be above 0 and is known for {' and '.join(WHITE)} alone. "
            f"Received: max_value={max_value}, dtype={np.dtype(dtype)}"
        )
    return white
