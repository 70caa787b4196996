"""Classes: one correct class per image, or any number of them."""

import logging
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import tensorflow as tf

from keras_vit.data import order
from keras_vit.data.targets import class_weights
from keras_vit.data.targets.target import Target

if TYPE_CHECKING:
    from keras_vit.data.sources.source import Source

log = logging.getLogger(__name__)


class Classes(Target):
    """A target is float32 `(classes,)`: 1 for each correct class, or shares of classes after mixing
    and smoothing.

    A stored label is an int64 scalar, or a vector of all correct classes, which may be empty.

    Args:
        source, options: as for `Target`.
        empty_is_negative: False gives examples without a correct class weight 0, as the softmax
            loss requires. If True, `Source.empty_is_negative` decides.
        one_label: True refuses sources that were declared to have any number of classes per image,
            as the softmax loss requires.

    Attributes:
        label_smoothing: fraction of each label that is distributed over all classes, in [0, 1).
        class_weights: weights of the classes in the training loss: "balanced", for weights of mean
            1 that are inversely proportional to the numbers of images; the path of a CSV file with
            a class and a weight per row; or "" for 1.
        sampling: "balanced" shows all classes equally often in training; "" shows all images
            equally often.
    """

    defaults: ClassVar = {"label_smoothing": 0.0, "class_weights": "", "sampling": ""}

    key = "label"
    refused = ()

    def __init__(self, source, options=None, empty_is_negative=True, one_label=False):
        super().__init__(source, options)
        self.empty_is_negative = empty_is_negative and source.empty_is_negative
        self.classes = len(source.class_names)
        if source.multi_label and one_label:
            raise ValueError(
                "Images with any number of classes need a task with --config.loss=sigmoid; for one "
                "class per image, name a column by --config.data.label_column. Received: "
                f"loss='softmax', classes={list(source.class_names[:10])}"
            )
        if not self.classes:
            raise ValueError(
                "A task that learns from classes needs a dataset with classes; "
                "--config.task=masked_patches learns from images alone. Received: class_names=()"
            )
        self.rule = (
            f"from 0 to {self.classes - 1} (for TFRecords, after --config.data.label_offset is "
            "subtracted)"
        )

    @staticmethod
    def check(options):
        if not 0 <= options.label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` must be in [0, 1). Received: "
                f"label_smoothing={options.label_smoothing}"
            )
        if options.sampling not in ("", "balanced") or (options.sampling and options.class_weights):
            raise ValueError(
                '`sampling` must be "", or "balanced" without `class_weights`, which would correct '
                f"twice. Received: sampling={options.sampling!r}, "
                f"class_weights={options.class_weights!r}"
            )

    def spec(self):
        return tf.TensorSpec([self.classes], tf.float32)

    def decode(self, example):
        label = example["label"]
        in_range = tf.reduce_all((label >= 0) & (label < self.classes))
        target = tf.one_hot(label, self.classes)
        weight = tf.cast(in_range, tf.float32)
        if target.shape.rank == 2:  # a row for each correct class
            # Add a row of zeros, because an empty label has no rows and so no maximum.
            target = tf.reduce_max(tf.pad(target, [[0, 1], [0, 0]]), 0) * weight
            if not self.empty_is_negative:
                weight *= tf.cast(tf.size(label) > 0, tf.float32)
        return target, weight, in_range

    def for_training(self, targets):
        """Distributes `label_smoothing` of each row over all classes; a row without a positive
        class stays 0."""
        smoothing = self.options.label_smoothing
        if not smoothing:
            return targets
        positive = tf.cast(tf.reduce_max(targets, 1, keepdims=True) > 0, tf.float32)
        return (1.0 - smoothing) * targets + smoothing / self.classes * positive

    def training_weights(self, targets, weights):
        """Multiplies weights by the mean weight of the classes of each row; a row without a
        positive class keeps its weight."""
        if not self.options.class_weights:
            return weights
        weight_of_class = tf.constant(self._class_weights(), tf.float32)
        total = tf.linalg.matvec(targets, weight_of_class)
        count = tf.reduce_sum(targets, 1)
        return weights * tf.where(count > 0, total / tf.maximum(count, 1.0), 1.0)

    def index_at(self, position, seed):
        if not self.options.sampling:
            return super().index_at(position, seed)
        self._class_counts()
        members = [self.source.members_of(label) for label in range(self.classes)]
        return order.balanced_index_at(position, members, seed)

    def _class_weights(self):
        """Returns the weight of each class."""
        if self.options.class_weights == "balanced":
            counts = self._class_counts()
            return np.sum(counts) / (self.classes * counts)
        return class_weights.read(self.options.class_weights, self.source.class_names)

    def _class_counts(self):
        """Returns the number of examples of each class; raises a `ValueError` if it is unknown, or
        0 for a class."""
        if self.source.labels is None:
            raise ValueError(
                '"balanced" needs the labels of all images before training, which TFRecords and '
                "TFDS do not give; `class_weights` can be a file. Received: "
                f"class_weights={self.options.class_weights!r}, sampling={self.options.sampling!r}"
            )
        if empty := _classes_without_examples(self.source):
            raise ValueError(f"Every class must have images. Received: no images of {empty[:10]}")
        return self.source.class_counts()

    def mix(self, targets, partners, share):
        return share * targets + (1.0 - share) * partners

    def classes_of(self, example):
        return np.atleast_1d(example["label"].numpy())

    def check_splits(self, test):
        check_splits(self.source, test.source)
        if self.options.sampling and self.source.multi_label:
            raise ValueError(
                '`sampling` must be "" if images may have any number of classes; `class_weights` '
                "can be balanced. Received: sampling='balanced'"
            )
        if self.options.sampling:
            self._class_counts()  # raises an error if the labels are unknown or a class is empty
        if self.options.class_weights:
            self._class_weights()  # raises an error for an invalid file, too

    def fingerprint(self, source):
        """Covers the class weights of a file too."""
        labels = super().fingerprint(source)
        if not self.options.class_weights:
            return labels
        return labels + np.asarray(self._class_weights(), np.float32).tobytes()

    def summary(self, max_names=10):
        names = list(map(str, self.source.class_names))
        if self.source.labels is not None:
            counts = self.source.class_counts()
            names = [f"{name} {count}" for name, count in zip(names, counts)]
        listed = ", ".join(names[:max_names] + ["..."] * (len(names) > max_names))
        return f"{len(names)} classes ({listed})"

    def title(self, target):
        """Returns up to three classes, with their shares unless they are 1."""
        # Leave out classes that have only a share of the label smoothing.
        best = [i for i in np.argsort(-target) if target[i] > 0.5 / len(target)][:3]
        shares = [f"{self.source.class_names[i]} {target[i]:.2f}" for i in best]
        return "\n".join(share.removesuffix(" 1.00") for share in shares)


def check_splits(train: "Source", test: "Source") -> None:
    """Checks that two sources have the same classes, and that every class has training examples.

    Logs classes without test examples. Sources with unknown labels are not checked for empty
    classes.

    Raises:
        ValueError: the classes differ, or a class has no training examples.
    """
    if train.class_names != test.class_names:
        only_train = sorted(set(train.class_names) - set(test.class_names))
        only_test = sorted(set(test.class_names) - set(train.class_names))
        raise ValueError(
            "The training and test splits must have the same classes in the same order. "
            f"Received: only in train={only_train[:10]}, only in test={only_test[:10]}"
        )
    if missing := _classes_without_examples(train):
        raise ValueError(
            "Every class must have examples in the training split. Integer labels start at 0; the "
            "folder of a class must not be empty; if images may have several classes, a rare class "
            "may need another split_seed, or fewer folds. Received: no examples of "
            f"{missing[:10]}"
        )
    if missing := _classes_without_examples(test):
        log.warning(
            "classes without examples in the test split: %d (for a folder, try another test_share "
            "or split_seed, or subfolders `train` and `test`): %s",
            len(missing),
            missing[:10],
        )


def _classes_without_examples(source):
    """Returns the names of classes without examples; none if the labels are unknown."""
    if source.labels is None:
        return []
    return [name for name, count in zip(source.class_names, source.class_counts()) if not count]
