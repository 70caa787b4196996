"""Base class of target kinds."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from keras_vit.data import order

if TYPE_CHECKING:
    from keras_vit.data.options import Options
    from keras_vit.data.sources.source import Source


class Target:
    """Makes the targets of a batch from the stored examples of one source.

    Args:
        source: the `Source` of the examples.
        options: the resolved `Options` of the batches; None omits their checks.

    Attributes:
        defaults: the kind's fields of `config.data`, with their default values.
        key: name of the stored value that `decode` reads, for messages; "" if it reads none.
        rule: what a stored value must be, for messages, such as "from 0 to 9".
        source_name: name of a source with such values, for messages.
        refused: fields of `Options` that must be unset (0 or ""), because they have no meaning for
            this kind.

    Raises:
        ValueError: the options or the source do not fit this kind.
    """

    defaults: ClassVar[dict[str, Any]] = {}
    key = ""
    rule = ""
    source_name = ""
    refused: tuple[str, ...] = (
        "mixup_alpha",
        "cutmix_alpha",
        "label_smoothing",
        "class_weights",
        "sampling",
    )

    def __init__(self, source: "Source", options: "Options | None" = None) -> None:
        self.source = source
        self.options = options
        wrong = [name for name in self.refused if getattr(options, name, 0)]
        if wrong:
            received = ", ".join(f"{name}={getattr(options, name)!r}" for name in wrong)
            raise ValueError(
                f"{', '.join(wrong)} must not be set, because the targets of the task do not allow "
                f"it; augreg sets randaugment_layers and mixup_alpha. Received: {received}"
            )

    @staticmethod
    def check(options: "Options") -> None:
        """Raises a `ValueError` if a field of this kind is out of range."""

    def spec(self) -> tf.TensorSpec:
        """Returns the `tf.TensorSpec` of one target, without the batch axis."""
        raise NotImplementedError

    def decode(self, example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the target of a stored example, its weight, and whether the stored value is
        valid.

        The weight is float32: 1, or 0 for an example without a target. An invalid value is an error
        that ends the run, unlike an image that cannot be read.
        """
        raise NotImplementedError

    def transform(self, target: tf.Tensor, geometry: Callable) -> tf.Tensor:
        """Returns a target that fits the crop, flip and size of its image; see
        `examples.geometry`."""
        return target

    def for_training(self, targets: tf.Tensor) -> tf.Tensor:
        """Returns the targets `(B, ...)` of a training batch, before they are mixed."""
        return targets

    def training_weights(self, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Returns the weights `(B,)` of a training batch, given its targets and weights of 0
        or 1."""
        return weights

    def index_at(self, position: tf.Tensor, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns how often an example was seen before, and its index, at each position of the
        training order; both int64."""
        return order.index_at(position, self.source.num_examples, seed)

    def mix(self, targets: tf.Tensor, partners: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """Mixes targets `(B, ...)` with those of their partners; `share`, a float32 scalar, remains
        of each image."""
        raise NotImplementedError

    def padding(self) -> tf.Tensor:
        """Returns the target of rows with weight 0."""
        spec = self.spec()
        return tf.zeros(spec.shape, spec.dtype)

    def fingerprint(self, source: "Source") -> bytes:
        """Returns what identifies the known targets of a source, to detect changed data."""
        labels = np.asarray([] if source.labels is None else source.labels)
        return labels.astype(np.int64 if labels.dtype.kind in "iu" else labels.dtype).tobytes()

    def check_splits(self, test: "Target") -> None:
        """Raises a `ValueError` unless a model that learns from this split can be tested on the
        other one."""

    def check_stored(self) -> None:
        """Raises a `ValueError` unless the stored examples have the value that `decode` reads."""
        stored = self.source.example_spec
        if self.key not in stored:
            raise ValueError(
                f"The task needs a source with a {self.key} for each image, such as "
                f"--config.data.name={self.source_name}. Received: a source with "
                f"{' and '.join(stored)}"
            )

    def summary(self, max_names: int = 10) -> str:
        """Returns words such as "2 classes (cat 9, dog 8)" for the start of a run, with at most
        `max_names` names."""
        return ""

    def title(self, target: np.ndarray) -> str:
        """Returns the title of an image with this target in a figure."""
        return ""

    def picture(self, picture: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Returns a picture `(H, W, 3)` in [0, 1] of an image with this target for a figure."""
        return picture

    def problem_of(self, example: dict[str, Any]) -> str:
        """Returns what is wrong with the stored value of an example, or "" if it is valid.

        The example was read eagerly.
        """
        return "" if self.decode(example)[-1] else self.shown(example)

    def shown(self, example: dict[str, Any]) -> str:
        """Returns the stored value of an example, which was read eagerly, for a message."""
        return str(example[self.key].numpy())

    def classes_of(self, example: dict[str, Any]) -> np.ndarray:
        """Returns the classes of an example, which was read eagerly, as integers `(N,)`; none for
        kinds without classes."""
        return np.zeros([0], np.int64)
