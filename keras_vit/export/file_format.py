"""The base of the formats of files that a model can be converted to."""

import dataclasses
import importlib.util
import os
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_vit import files
from keras_vit.export.comparison import (
    ExportReport,
    compare,
    example_images,
    in_batches,
    reference,
)
from keras_vit.export.graph import inference_copy
from keras_vit.layers.validation import check_choice
from keras_vit.models.any_model import check_images_known, takes_any_size
from keras_vit.terminal import first_line


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of files with the input `images` and the output `logits`.

    Attributes:
        name: name of the format in messages.
        ending: extension of its files.
        convert: function `(model, spec, quantization, images)` that returns the content of a file,
            given an inference copy of a model and the `TensorSpec` of its images.
        runner: function from the content of a file to a function of images, which are float32
            `(B, H, W, C)`.
        extra: extra of this package that installs `packages`.
        packages: further packages that the format needs.
        calibrates: whether "int8" needs images.
    """

    name: str
    ending: str
    convert: Callable
    runner: Callable
    extra: str = ""
    packages: tuple[str, ...] = ()
    calibrates: bool = False

    def content(
        self,
        model: keras.Model,
        spec: tf.TensorSpec,
        quantization: str = "none",
        images: np.ndarray | None = None,
    ) -> bytes:
        """Returns the content of a file that runs; `spec` comes from `check_convertible`."""
        for name in self.packages:
            if not importlib.util.find_spec(name):
                raise ImportError(
                    f'{name} is not installed: pip install "keras_vit[{self.extra}]"', name=name
                )
        if quantization == "int8" and self.calibrates and images is None:
            raise ValueError(
                f"`images` (--calibrate) is required to calibrate int8 in {self.name}. Received: "
                "images=None"
            )
        copy = inference_copy(model)
        try:
            content = self.convert(copy, spec, quantization, images)
            # A conversion may succeed and still produce an invalid file.
            self.runner(content)(example_images(spec.shape[1:], 1))
            return content
        except Exception as error:  # converters have their own exception types
            raise ValueError(
                f"The format {self.name} cannot store the model ({first_line(error)}). Received: "
                f"model={model.name!r}"
            ) from error

    def write(
        self,
        model: keras.Model,
        path: str | os.PathLike,
        quantization: str = "none",
        images: np.ndarray | None = None,
    ) -> ExportReport:
        """Writes a file, and compares its outputs with the model's."""
        path = os.fspath(path)
        if not path.endswith(self.ending):
            raise ValueError(f'`path` must end in "{self.ending}". Received: path={path!r}')
        check_choice("quantization", quantization, ("none", "int8"))
        spec = check_convertible(model, f"The format {self.name}")
        compared = reference(model, images)
        given = None if images is None else compared.images
        content = self.content(model, spec, quantization, given)
        outputs = in_batches(self.runner(content), compared.images)
        report = compare(path, len(content), model, compared, outputs)
        explained = files.explained_errors(
            "The file cannot be written", "Choose another path.", f"path={path!r}"
        )
        with explained, files.atomic_write(path, "wb") as file:
            file.write(content)
        return report


def check_convertible(model, format_name):
    """Returns the `TensorSpec` of a model's images.

    Raises a `ValueError` if the backend is not TensorFlow, the model takes images of any size or
    has several outputs, or its image size is unknown.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"{format_name} is converted from a TensorFlow graph; save the model as .keras and "
            "export it with KERAS_BACKEND=tensorflow. Received: "
            f"backend={keras.backend.backend()!r}"
        )
    if takes_any_size(model):
        raise ValueError(
            "A model for images of any size can only be exported as a SavedModel. Received: "
            f"model={model.name!r}"
        )
    shape = (None, *check_images_known(model))
    outputs = keras.tree.flatten(model.compute_output_spec(keras.KerasTensor(shape)))
    if len(outputs) > 1:
        raise ValueError(
            f"The model must have one output. Received: {len(outputs)} outputs, "
            f"model={model.name!r}"
        )
    return tf.TensorSpec(shape, tf.float32, "images")
