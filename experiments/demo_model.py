"""What a model gives for the page of `demo.py`: image files to predictions, and to what its tokens attend to."""

import dataclasses
import threading
from pathlib import Path

import numpy as np
import tensorflow as tf
from image_files import ImageFileReader, why_refused
from keras import ops
from model_flags import build_model, load_model, read_class_names

import keras_vit
from keras_vit import Preprocessing, export, files, inspection
from keras_vit.export.assets import LABELS, MODEL
from keras_vit.export.graph import ACTIVATIONS
from keras_vit.export.versions import MARKER
from keras_vit.models.inside import find_vision_transformer
from keras_vit.models.shapes import gives_probabilities, logits_activation_of

MAX_IMAGES = 64  # that are read at a time


@dataclasses.dataclass(frozen=True)
class DemoImage:
    """An image file as a model takes it.

    Attributes:
        name: of the file.
        picture: what the model sees of it, uint8 `(H, W, 3)`.
        inputs: what the model is given: float32 `(H, W, C)`, or for a SavedModel the bytes of the file.
    """

    name: str
    picture: np.ndarray
    inputs: object


class KerasModel:
    """A Keras model; one request at a time, since what looks into a model changes it for a moment.

    Args:
        model: a `keras.Model` from images to logits or probabilities `(B, classes)`.
        title: what the page calls it.
        class_names: the name of each class; None to number them.
        activation: what turns logits into probabilities, "softmax" or "sigmoid".

    Attributes:
        title: the argument.
        facts: a sentence about the model.
        missing: a sentence about what the page cannot show of it, or "".
        reader: its `ImageFileReader`.
        class_names: a list of str.
        grid, layers, heads: of its attention; None and 0 where there is none to look at.
        has_attention: whether `attention` can be asked.

    Raises:
        ValueError: the model gives no classes, or does not say how its images are prepared.
    """

    def __init__(self, model, title, class_names=None, activation="softmax"):
        if not _is_classifier(model):
            raise ValueError(
                "The page shows models from images (B, H, W, C) to logits or probabilities (B, classes). "
                f"Received: input_shape={model.input_shape}, output_shape={model.output_shape}"
            )
        self.title = title
        self._model, self._lock = model, threading.Lock()
        self._to_probabilities = np.asarray if gives_probabilities(model) else ACTIVATIONS[activation]
        classes = model.output_shape[-1]
        self.class_names = _names(class_names, classes)
        height, width, channels = model.input_shape[1:]
        self.reader = ImageFileReader((height, width, channels), keras_vit.preprocessing_of(model))
        self.grid, self.layers, self.heads, self.missing = None, 0, 0, ""
        what = f"{model.count_params():,} parameters"
        try:
            vit = find_vision_transformer(model)
        except ValueError:
            self.missing = "This model has no tokens that attend to one another, so there is no attention to show."
        else:
            self.grid, self.layers, self.heads = vit.grid, vit.num_layers, vit.num_heads
            token = "no class token" if vit.class_token is None else "a class token"
            what += f", {self.layers} layers of {self.heads} heads, {self.grid[0]} x {self.grid[1]} patches and {token}"
        kind = "gray" if channels == 1 else "color" if channels == 3 else f"{channels}-channel"
        self.facts = f"{what}; {kind} images of {width} x {height} pixels; {_count_classes(classes)}."

    @property
    def has_attention(self):
        return self.layers > 0

    def read(self, name, content):
        """As `ImageFileReader.read`, a `DemoImage`."""
        image, picture = self.reader.read(name, content)
        return DemoImage(name, picture, image)

    def probabilities(self, batch):
        """Of a list of `DemoImage`s, float32 `(N, classes)`."""
        with self._lock:
            outputs = self._model(np.stack([image.inputs for image in batch]), training=False)
        outputs = ops.convert_to_numpy(ops.cast(outputs, "float32"))
        return np.asarray(self._to_probabilities(outputs))

    def attention(self, image, patch=None, layer=-1, head=None):
        """`keras_vit.inspection.token_attention` of a `DemoImage`: two maps, float32 `(rows, columns)`."""
        with self._lock:
            maps = inspection.token_attention(self._model, image.inputs[None], patch, layer, head)
        return tuple(values[0] for values in maps)


class ServedModel:
    """A SavedModel without the Keras model beside it: what its signatures give. See `KerasModel`.

    Args:
        folder: of the SavedModel.
        title: what the page calls it.
        class_names: as of `load`.

    Raises:
        ValueError: it has no signature `serving_default` from image files to probabilities.
    """

    def __init__(self, folder, title, class_names=""):
        self.title, self._lock = title, threading.Lock()
        try:
            self._loaded = tf.saved_model.load(str(folder))  # the signatures alone would not keep its variables
        except (OSError, RuntimeError, tf.errors.OpError) as error:
            raise ValueError(f"The SavedModel is damaged ({error}). Received: model={title!r}") from error
        self._signatures = self._loaded.signatures
        outputs = (
            self._signatures["serving_default"].structured_outputs if "serving_default" in self._signatures else {}
        )
        if "probabilities" not in outputs:
            raise ValueError(
                "The page needs an export with the signature serving_default, from image files to probabilities. "
                f"Received: {title} with {', '.join(self._signatures) or 'no signatures'}"
            )
        classes = outputs["probabilities"].shape[-1]
        labels = files.read_text(folder / LABELS).splitlines() if files.exists(folder / LABELS) else None
        self.class_names = _names(read_class_names(class_names, classes) if class_names else labels, classes)
        self.grid, self.layers, self.heads = None, 0, 0
        try:
            card = export.load_card(folder)
            shape, preprocessing = card["architecture"]["image_shape"], card["preprocessing"]["model"]
            self.reader = ImageFileReader(shape, Preprocessing.from_config(preprocessing))
        except (ValueError, KeyError, TypeError):
            shape, self.reader = None, ImageFileReader((256, 256, 3), Preprocessing())
        self.has_attention = shape is not None and "attention" in self._signatures
        self.facts = f"A SavedModel; {_count_classes(classes)}."
        self.missing = "An export without its Keras model cannot be looked into: " + (
            "there is the attention of all layers multiplied, and no patch, layer or head can be chosen."
            if self.has_attention
            else "there are only the predictions. One with the signature attention shows the attention too."
        )

    def read(self, name, content):
        _, picture = self.reader.read(name, content)
        return DemoImage(name, picture, content)

    def probabilities(self, batch):
        encoded = tf.constant([image.inputs for image in batch])
        try:
            with self._lock:
                return self._signatures["serving_default"](image_bytes=encoded)["probabilities"].numpy()
        except tf.errors.InvalidArgumentError as error:
            names = ", ".join(image.name for image in batch)
            raise ValueError(f"{names} {why_refused(batch[0].inputs, error.message)}.") from error

    def attention(self, image, patch=None, layer=-1, head=None):
        """The rollout of what the output reads, `(H, W)`; None for that of a layer."""
        with self._lock:
            output = self._signatures["attention"](image_bytes=tf.constant([image.inputs]))
        return output["attention"][0].numpy(), None


def load(source, variant="", weights="", class_names=""):
    """The model that the flags name: a `.keras` file, a workdir or an export (`source`), or a variant with weights.

    `class_names` is a file of them, one a line, "published", or "" for those of the run, or numbers.

    Raises:
        ValueError: there is none, or the page cannot show it.
    """
    if not source:
        model = build_model(variant, weights)
        names = read_class_names(class_names, model.output_shape[-1]) if class_names else None
        return KerasModel(model, f"{variant} with {weights or 'random'} weights", names)
    folder = files.as_path(source)
    if files.exists(folder / MARKER) and not files.exists(folder / MODEL):
        return ServedModel(folder, source, class_names)
    model, details = load_model(source)
    names = read_class_names(class_names, model.output_shape[-1]) if class_names else details.get("class_names")
    return KerasModel(model, source, names, details.get("activation") or logits_activation_of(model))


def read_files(model, paths):
    """Image files for a page.

    Args:
        model: a `KerasModel` or `ServedModel`.
        paths: of the files.

    Returns:
        A list of `DemoImage`s, their probabilities, float32 `(N, classes)`, and sentences about the files that cannot
        be used or lose something.
    """
    demo_images, probabilities, sentences = [], [], []
    if len(paths) > MAX_IMAGES:
        sentences.append(f"These are {len(paths)} files; the first {MAX_IMAGES} are shown.")
    for path in map(Path, paths[:MAX_IMAGES]):
        try:
            content = path.read_bytes()
            image = model.read(path.name, content)
            probabilities.append(model.probabilities([image])[0])
        except ValueError as error:
            sentences.append(str(error))
        else:
            demo_images.append(image)
            sentences += model.reader.notes(path.name, content)
    return demo_images, np.array(probabilities), sentences


def _is_classifier(model):
    images, outputs = model.input_shape, model.output_shape
    is_batch = all(isinstance(shape, tuple) for shape in (images, outputs)) and (len(images), len(outputs)) == (4, 2)
    return is_batch and None not in (*images[1:], *outputs[1:])


def _names(names, classes):
    names = list(map(str, range(classes))) if names is None else list(names)
    if len(names) != classes:
        raise ValueError(f"There must be a name for each of {classes} classes. Received: {len(names)} names")
    return names


def _count_classes(classes):
    return "1 class, of which a softmax is always sure" if classes == 1 else f"{classes:,} classes"
