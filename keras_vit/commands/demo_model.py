"""What a model shows on the page of `keras-vit demo`: predictions, what its tokens attend to, and pictures of both."""

import dataclasses
import html
import threading
from pathlib import Path

import numpy as np
from keras import ops

from keras_vit import inspection
from keras_vit.commands import shared_flags
from keras_vit.commands.image_files import ImageFileReader
from keras_vit.export.signatures import ACTIVATIONS
from keras_vit.models.inside import find_vision_transformer
from keras_vit.models.shapes import gives_probabilities, logits_activation_of
from keras_vit.plots import colormap
from keras_vit.preprocessing import preprocessing_of

MAX_IMAGES = 64  # that are read at a time
SIDE = 448  # of a picture, in pixels: small images are enlarged by a whole number to about this
_COLORS = "viridis"


@dataclasses.dataclass(frozen=True)
class DemoImage:
    """A file's name, what the model sees of it, uint8 `(H, W, 3)`, and the model's input, float32 `(H, W, C)`."""

    name: str
    picture: np.ndarray
    inputs: np.ndarray


class KerasModel:
    """A Keras model; one request at a time, since what looks into a model changes it for a moment.

    `facts` and `missing` are sentences about the model and what the page cannot show; `grid`, `layers` and `heads` are
    those of its attention, None and 0 if there is none.
    """

    grid, layers, heads, missing = None, 0, 0, ""

    def __init__(self, model, title, class_names=None, activation="softmax"):
        images, outputs = model.input_shape, model.output_shape
        is_batch = all(isinstance(shape, tuple) for shape in (images, outputs))
        if not is_batch or (len(images), len(outputs)) != (4, 2) or None in (*images[1:], *outputs[1:]):
            raise ValueError(
                "The page shows models from images (B, H, W, C) to logits or probabilities (B, classes). "
                f"Received: input_shape={images}, output_shape={outputs}"
            )
        self.title, self._model, self._lock = title, model, threading.Lock()
        self._to_probabilities = np.asarray if gives_probabilities(model) else ACTIVATIONS[activation]
        self.class_names = list(map(str, range(outputs[-1])) if class_names is None else class_names)
        if len(self.class_names) != outputs[-1]:
            raise ValueError(
                f"There must be a name for each of {outputs[-1]} classes. Received: {len(self.class_names)} names"
            )
        height, width, channels = images[1:]
        self.reader = ImageFileReader((height, width, channels), preprocessing_of(model))
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
        self.facts = f"{what}; {kind} images of {width} x {height} pixels; {outputs[-1]:,} classes."

    def read(self, name, content):
        """A file's name and content as a `DemoImage`; raises a `ValueError` with a sentence for people."""
        image, picture = self.reader.read(name, content)
        return DemoImage(name, picture, image)

    def probabilities(self, batch):
        """Of a list of `DemoImage`s, float32 `(N, classes)`."""
        with self._lock:
            outputs = self._model(np.stack([image.inputs for image in batch]), training=False)
        return np.asarray(self._to_probabilities(ops.convert_to_numpy(ops.cast(outputs, "float32"))))

    def attention(self, image, patch=None, layer=-1, head=None):
        """`keras_vit.inspection.token_attention` of a `DemoImage`: two maps, float32 `(rows, columns)`."""
        with self._lock:
            maps = inspection.token_attention(self._model, image.inputs[None], patch, layer, head)
        return tuple(values[0] for values in maps)


def load(source, variant="", weights="", class_names=""):
    """The `KerasModel` for the values of the flags."""
    model, details, title = shared_flags.choose_model(source, variant, weights)
    names = details.get("class_names")
    names = shared_flags.read_class_names(class_names, model.output_shape[-1]) if class_names else names
    return KerasModel(model, title, names, details.get("activation") or logits_activation_of(model))


def read_files(model, paths):
    """`(images, probabilities, sentences)`: `DemoImage`s, float32 `(N, classes)`, and what is wrong with files."""
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


def attention_picture(picture, attention, patch=None, opacity=0.6):
    """An image, uint8 `(H, W, 3)`, enlarged, under the colors of an attention map `(rows, columns)`; the largest value
    is the brightest color, and `patch`, `(row, column)`, gets a frame."""
    picture = enlarge(picture)
    height, width = picture.shape[:2]
    unit = attention / max(float(attention.max()), 1e-30)
    rows, columns = (np.arange(size) * count // size for size, count in zip((height, width), attention.shape))
    colors = 255 * colormap(_COLORS)(unit)[..., :3][rows[:, None], columns]
    gray = picture.mean(-1, keepdims=True) if opacity else picture
    picture = np.uint8(np.rint((1 - opacity) * gray + opacity * colors))
    if patch is not None:
        _outline(picture, rows == patch[0], columns == patch[1])
    return picture


def enlarge(picture):
    """uint8 `(H, W, 3)`, each pixel repeated so that the longer side is about `SIDE`."""
    factor = max(1, round(SIDE / max(picture.shape[:2])))
    return picture.repeat(factor, 0).repeat(factor, 1)


def patch_at(x, y, size, grid):
    """The patch `(row, column)` of a pixel of a picture of `size`, `(height, width)`; of one outside the nearest."""
    place = zip((y, x), size, grid)
    return tuple(min(max(int(i) * count // side, 0), count - 1) for i, side, count in place)


def heading(title, *sentences):
    """HTML of the head of the page."""
    lines = "".join(f'<p style="margin: 0.2em 0">{html.escape(sentence)}</p>' for sentence in sentences if sentence)
    return f'<h1 style="margin: 0; overflow-wrap: anywhere">{html.escape(title)}</h1>{lines}'


def messages(sentences):
    """HTML of sentences about files, one a line."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul role="status" style="margin: 0; padding-left: 1.2em">{items}</ul>' if items else ""


def _outline(picture, rows, columns):
    """Draws a black and white frame around the pixels where both are true."""
    (top, bottom), (start, end) = ((i[0], i[-1] + 1) for i in (np.flatnonzero(rows), np.flatnonzero(columns)))
    for inset, color in ((0, 0), (2, 255)):
        inner = picture[top + inset : bottom - inset, start + inset : end - inset]
        if inner.size:
            inner[:2], inner[-2:], inner[:, :2], inner[:, -2:] = color, color, color, color
