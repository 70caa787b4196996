"""What a conversion cost: how far its logits are from the model's, and how large its file is."""

import dataclasses

import keras
import numpy as np

from keras_vit import files


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """A converted model, compared with the model that it was converted from.

    Attributes:
        path: the file or folder that was written.
        size_bytes: its size.
        weights_bytes: the size of the model's weights in float32.
        largest_difference: the largest absolute difference of a logit, on images of smooth noise.
        logits_range: from the smallest to the largest logit of the model on them, to judge the difference by.
        same_class: the share of the images, in [0, 1], for which both predict the same class.
    """

    path: str
    size_bytes: int
    weights_bytes: int
    largest_difference: float
    logits_range: float
    same_class: float

    def __str__(self):
        return (
            f"{self.path}: {self.size_bytes / 1e6:.2f} MB ({self.size_bytes / self.weights_bytes:.2f} of float32), "
            f"logits differ by {self.largest_difference:.2g} at most (their range is {self.logits_range:.2g}), "
            f"the same class for {100 * self.same_class:.0f} % of the images"
        )


def example_images(image_shape, count=8):
    """Smooth noise in [-1, 1], the same in every call: float32 `(count, H, W, C)`."""
    height, width, channels = image_shape
    noise = np.random.default_rng(0).uniform(-1, 1, (count, 5, 7, channels)).astype("float32")
    return keras.ops.convert_to_numpy(keras.ops.image.resize(noise, (height, width), data_format="channels_last"))


def compare(path, size_bytes, model, images, logits):
    """The report of a conversion.

    Args:
        path: the file or folder that was written.
        size_bytes: its size.
        model: the model that was converted.
        images: float32 `(B, H, W, C)`, inputs of both.
        logits: `(B, classes)`, outputs of the converted model.

    Returns:
        An `ExportReport`.

    Raises:
        ValueError: the logits have another shape than the model's, or are not finite.
    """
    expected = keras.ops.convert_to_numpy(keras.ops.cast(model(images, training=False), "float32"))
    if logits.shape != expected.shape or not np.isfinite(logits).all():
        raise ValueError(
            f"The converted model must give finite logits of the shape {expected.shape}. "
            f"Received: shape={logits.shape}, finite={bool(np.isfinite(logits).all())}"
        )
    return ExportReport(
        path=str(path),
        size_bytes=size_bytes,
        weights_bytes=4 * model.count_params(),
        largest_difference=float(np.abs(logits - expected).max()),
        logits_range=float(np.ptp(expected)),
        same_class=float((logits.argmax(-1) == expected.argmax(-1)).mean()),
    )


def write_compared(path, content, model, images, logits):
    """Compares a converted model as `compare` does, then writes its bytes to a file, at once.

    Raises:
        ValueError: the logits are not the model's, or the file cannot be written.
    """
    report = compare(path, len(content), model, images, logits)
    try:
        with files.atomic_write(path, "wb") as file:
            file.write(content)
    except OSError as error:
        raise ValueError(f"The file cannot be written ({error.strerror or error}). Received: path={path!r}") from error
    return report
