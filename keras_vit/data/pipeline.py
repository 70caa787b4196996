"""The training and test data of a run: their options, targets, batches and checksums."""

import dataclasses
import functools
import logging
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from keras_vit.data import batching, targets
from keras_vit.data.bad_examples import BadExamples, decoder
from keras_vit.data.options import Options
from keras_vit.data.sources.source import Source
from keras_vit.preprocessing import Preprocessing

log = logging.getLogger(__name__)


class Fingerprint(NamedTuple):
    """The numbers that identify the data of a run.

    Attributes:
        num_train: number of training examples.
        num_test: number of test examples.
        class_names: checksum of the class names.
        data: checksum of both splits, which covers the labels (if known) and `Source.checksum`.
        train_data: the same for the training split only.
    """

    num_train: int
    num_test: int
    class_names: int
    data: int
    train_data: int


@dataclasses.dataclass(frozen=True)
class InputPipeline:
    """The training and test data of a run.

    Attributes:
        train, test: the training and the test `Source`.
        options: fields of `Options`, as a dict.
        batch_size, seed: as in the run's config.
        max_bad_share: largest tolerated fraction of unreadable examples in an epoch, for each
            split.
        target: name of the target kind, a key of `TARGETS`.
        target_arguments: further arguments of the target kind, as a JSON-serializable dict.
    """

    train: Source
    test: Source
    options: dict
    batch_size: int
    seed: int
    max_bad_share: float
    target: str = "classes"
    target_arguments: dict = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def train_options(self) -> Options:
        """The `Options` resolved for the training source."""
        return Options(**self.options).resolve(self.train)

    @functools.cached_property
    def test_options(self) -> Options:
        """The `Options` resolved for the test source."""
        return Options(**self.options).resolve(self.test)

    @functools.cached_property
    def train_target(self) -> targets.Target:
        """Makes the targets of the training batches."""
        return targets.get(self.target)(self.train, self.train_options, **self.target_arguments)

    @functools.cached_property
    def test_target(self) -> targets.Target:
        """Makes the targets of the test batches."""
        return targets.get(self.target)(self.test, self.test_options, **self.target_arguments)

    @functools.cached_property
    def _failures(self):
        """The indices of unreadable examples: for each split, a dict from steps to indices."""
        return {"train": {}, "test": {}}

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of an image in a batch, and the model's default input shape; see
        `Options.image_shape`."""
        return self.train_options.image_shape(self.train)

    def summary(self) -> str:
        """Returns a line that summarizes crops, shifts, flips and RandAugment, in terms of the
        config fields."""
        train = self.train_options
        test = self.test_options
        flip = "on" if train.flip else "off"
        exif = "; EXIF rotation is applied" if test.exif else ""
        return (
            f"training images: train_crop {train.train_crop}, shift {train.shift}, flip {flip}, "
            f"{train.randaugment_layers} layers of RandAugment; test images: eval_crop "
            f"{test.eval_crop}{exif}"
        )

    def train_batches(
        self, start_step: int = 0, num_hosts: int = 1, host_index: int = 0
    ) -> tf.data.Dataset:
        """Returns the training batches; see `data.train_batches`."""
        return batching.train_batches(
            self.train,
            batch_size=self.batch_size,
            seed=self.seed,
            start_step=start_step,
            num_hosts=num_hosts,
            host_index=host_index,
            options=self.train_options,
            failures=self._failures["train"],
            target=self.train_target,
        )

    def eval_batches(self, num_hosts: int = 1, host_index: int = 0) -> tf.data.Dataset:
        """Returns the test batches; see `data.eval_batches`."""
        return batching.eval_batches(
            self.test,
            batch_size=self.batch_size,
            num_hosts=num_hosts,
            host_index=host_index,
            options=self.test_options,
            failures=self._failures["test"],
            target=self.test_target,
        )

    def fingerprint(self) -> Fingerprint:
        """Returns the numbers of examples and the checksums that identify the data."""
        names = "\n".join(self.train.class_names).encode("utf-8", "surrogateescape")
        checksums = [0]
        for source in (self.train, self.test):
            labels = self.train_target.fingerprint(source)
            checksum = source.checksum().to_bytes(4, "little")
            checksums.append(zlib.crc32(labels + checksum, checksums[-1]))
        _, train, both = checksums
        return Fingerprint(
            num_train=self.train.num_examples,
            num_test=self.test.num_examples,
            class_names=zlib.crc32(names),
            data=both,
            train_data=train,
        )

    def describe(self) -> dict:
        """Returns a JSON-serializable description of the data, without its examples."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "train": self.train.describe(), "test": self.test.describe()}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> "InputPipeline":
        """Returns the pipeline that `describe` described: its classes, shapes and preprocessing,
        without examples."""
        sources = {
            split: Source.from_description(description[split]) for split in ("train", "test")
        }
        options = {
            k: tuple(v) if isinstance(v, list) else v for k, v in description["options"].items()
        }
        return cls(**{**description, **sources, "options": options})

    def normalized_as(self, preprocessing: Preprocessing) -> "InputPipeline":
        """Returns a copy that decodes and normalizes images with the library, mean and std of a
        `Preprocessing`.

        Raises:
            ValueError: the means or stds do not fit the number of channels.
        """
        preprocessing = preprocessing.for_channels(self.train_options.channels)
        white = 2**preprocessing.bit_depth - 1
        # `()` stands for half of the value of a white pixel.
        changes = {"library": preprocessing.library, "mean": (), "std": ()}
        if {*preprocessing.mean, *preprocessing.std} != {white / 2}:
            scale = self.test_options.white(self.test) / white
            for name in ("mean", "std"):
                changes[name] = tuple(scale * value for value in getattr(preprocessing, name))
        return dataclasses.replace(self, options=self.options | changes)

    def model_preprocessing(self) -> Preprocessing:
        """Returns the `keras_vit.Preprocessing` that prepares image files in the same way as the
        test images."""
        return self.test_options.model_preprocessing(self.test)

    def bad_examples(self, split: str, warn: Callable[[str], object] = log.warning) -> BadExamples:
        """Returns a new `BadExamples` for a split, "train" or "test"; `warn` is called with each
        message."""
        source, options, target = (
            getattr(self, name) for name in (split, f"{split}_options", f"{split}_target")
        )
        crop = options.train_crop if split == "train" else options.eval_crop
        return BadExamples(
            source,
            self._failures[split],
            decoder(source, options, options.image_shape(source) if crop == "none" else None),
            self.batch_size,
            self.max_bad_share,
            warn,
            target,
        )
