"""Serves a web page that shows a model's top classes and attention for your images.

    keras-vit demo --model=runs/digits
    keras-vit demo --model=mine.keras --class_names=names.txt
    keras-vit demo --variant=ViT_B16 --weights=augreg --class_names=published

By default, only this machine can open the page; `--host=0.0.0.0` makes it accessible from the
network. No data is sent to other servers. Images stay in memory and in a temporary folder for about
an hour, or until the command ends.
"""

import collections
import os
import signal
import tempfile
import threading
import types
from pathlib import Path

import numpy as np
from absl import flags
from scipy.ndimage import binary_erosion

from keras_vit import files, inspection
from keras_vit.commands import demo_pixels, shared_flags
from keras_vit.commands.demo_page import description_of, new_page
from keras_vit.commands.image_files import Classifier
from keras_vit.export.dense_signatures import predicts_of
from keras_vit.models.any_model import find_vision_transformer
from keras_vit.plots import overlaid, to_uint8

FLAGS = flags.FLAGS
LOCAL = ("127.0.0.1", "localhost")
TOP = 5  # number of classes to show
# The size in pixels to which `enlarge` brings the longer side of an image.
SIDE = 448
# Content security policy that prevents the browser from loading anything from other servers.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' "
    "'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "frame-ancestors 'none'"
)


def define_flags():
    shared_flags.define_model()
    shared_flags.define_class_names()
    flags.DEFINE_string(
        "host", "127.0.0.1", "Address to listen on; 0.0.0.0 accepts connections from the network."
    )
    flags.DEFINE_integer("port", 7860, "Port to listen on.", lower_bound=1, upper_bound=65535)


def main():
    gradio = import_gradio()
    chosen = shared_flags.chosen_model()
    if predicts_of(chosen[0]):
        model = demo_pixels.PixelModel(*chosen, FLAGS.class_names)
        build = demo_pixels.build_page
    else:
        model = DemoModel(*chosen, FLAGS.class_names)
        build = build_page
    with tempfile.TemporaryDirectory(prefix="keras_vit-demo-") as folder:
        # Components of a page read this variable when they are created.
        os.environ["GRADIO_TEMP_DIR"] = folder
        serve(build(model, gradio), gradio, FLAGS.host, FLAGS.port)


def import_gradio():
    """Imports Gradio with its network traffic disabled."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Gradio checks its own server with requests that must not go through a proxy.
    proxies = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, [proxies, *LOCAL]))
    try:
        import gradio
    except ImportError as error:
        raise ImportError('The demo requires Gradio: pip install "keras_vit[demo]"') from error
    return gradio


class DemoModel:
    """A classifier with its class names, patch grid, number of layers and number of attention
    heads.

    If the model contains no Vision Transformer with a fixed patch grid, the grid is None and both
    numbers are 0.
    """

    grid = None
    layers = 0
    heads = 0

    def __init__(self, model, details, title, class_names=""):
        self._classifier = Classifier(model, details, class_names)
        self._model = model
        self.title = title
        self.class_names = self._classifier.class_names
        self.reader = self._classifier.reader
        self.description = description_of(model)
        try:
            vit = find_vision_transformer(model)
            vit.check_grid()
        except ValueError:
            self.description += "; the model has no attention maps to show"
        else:
            self.grid = vit.grid
            self.layers = vit.num_layers
            self.heads = vit.num_heads
            self.description += (
                f"; {self.layers} layers of {self.heads} heads, "
                f"{self.grid[0]} x {self.grid[1]} patches"
            )

    def probabilities(self, image):
        """Returns `{class name: probability}` for an image, float32 `(H, W, C)`.

        If several classes have the same name, such as ImageNet's two classes "crane", their numbers
        are added to it.
        """
        counts = collections.Counter(self.class_names)
        names = [
            f"{name} ({i})" if counts[name] > 1 else name for i, name in enumerate(self.class_names)
        ]
        probabilities = self._classifier.probabilities(image[None])[0]
        return dict(zip(names, map(float, probabilities), strict=True))

    def attention(self, image, patch=None, layer=-1, head=None):
        """Returns two attention maps `(rows, columns)` of an image; see
        `keras_vit.inspection.token_attention`."""
        maps = inspection.token_attention(self._model, image[None], patch, layer, head)
        return [attention[0] for attention in maps]


def build_page(model, gradio):
    """Builds the `gradio.Blocks` for a `DemoModel`; each browser tab has its own image and
    patch."""

    def read(path):
        """Reads an uploaded image; returns the values of `state`, `patch`, `classes` and
        `original`."""
        if path is None:
            return [None] * 4
        try:
            image, picture = model.reader.read(Path(path).name, Path(path).read_bytes())
        except ValueError as error:
            raise gradio.Error(str(error), print_exception=False) from error
        return (image, picture), None, model.probabilities(image), path

    def choose_patch(state, event: gradio.SelectData):  # the annotation makes Gradio pass the event
        return patch_at(*event.index, enlarge(state[1]).shape[:2], model.grid)

    def draw(state, patch, layer, head):
        """Returns the heading and two pictures: the attention rollout over all layers, and one
        layer's attention."""
        if state is None or not model.layers:
            return "", None, None
        query = "the output"
        if patch is not None:
            query = f"the patch in row {patch[0] + 1}, column {patch[1] + 1}"
        names = ("All layers (rollout)", f"Layer {int(layer)}")
        maps = model.attention(state[0], patch, int(layer), int(head) or None)
        pictures = [
            gradio.Image(
                attention_picture(state[1], attention, patch),
                label=f"{name}: 0 to {100 * attention.max():.3g} %",
            )
            for name, attention in zip(names, maps)
        ]
        return f"### Attention of {query}", *pictures

    with new_page(model, gradio) as page:
        state = gradio.State(None)
        patch = gradio.State(None)
        _connect(_lay_out(gradio, model), state, patch, read, choose_patch, draw)
    return page


def _connect(parts, state, patch, read, choose_patch, draw):
    """Connects the events of the page to functions; only one request at a time uses the model."""
    options = {"concurrency_limit": 1, "concurrency_id": "model", "api_visibility": "private"}
    drawing = {
        "fn": draw,
        "inputs": [state, patch, parts.layer, parts.head],
        "outputs": [parts.query, parts.rollout, parts.attention],
        **options,
    }
    outputs = [state, patch, parts.classes, parts.original]
    parts.upload.change(read, parts.upload, outputs, **options).then(**drawing)
    for image in (parts.rollout, parts.attention):
        image.select(choose_patch, state, patch, **options).then(**drawing)
    parts.output.click(lambda: None, None, patch, **options).then(**drawing)
    # Skip the intermediate positions of a moving slider.
    for slider in (parts.layer, parts.head):
        slider.change(trigger_mode="always_last", **drawing)


def _lay_out(gradio, model):
    """Adds the visible parts to the page and returns them: left, the image and its classes; right,
    the attention maps, if the model has a patch grid."""
    fixed = {"interactive": False, "buttons": ["fullscreen"]}
    parts = types.SimpleNamespace()
    with gradio.Row():
        with gradio.Column(scale=2, min_width=300):
            parts.upload = gradio.File(
                label="Drop or choose an image", height=170, elem_id="upload"
            )
            parts.original = gradio.Image(
                label="The file", type="filepath", elem_id="original", **fixed
            )
            parts.classes = gradio.Label(
                label="Best classes", num_top_classes=TOP, elem_id="classes"
            )
        with gradio.Column(scale=5, visible=model.layers > 0):
            parts.query = gradio.Markdown(elem_id="query")
            with gradio.Row():
                parts.rollout = gradio.Image(format="png", elem_id="rollout", **fixed)
                parts.attention = gradio.Image(format="png", elem_id="attention", **fixed)
            gradio.Markdown("Click a patch in a picture to show its attention.")
            with gradio.Row():
                last = max(model.layers, 1)
                parts.layer = gradio.Slider(
                    1, max(last, 2), last, step=1, label="Layer", elem_id="layer"
                )
                parts.head = gradio.Slider(
                    0, max(model.heads, 1), 0, step=1, label="Head (0: mean of all)"
                )
            parts.output = gradio.Button(
                "Show the attention of the output", size="sm", elem_id="output"
            )
    return parts


def attention_picture(picture, attention, patch=None, opacity=0.6):
    """Enlarges an image, uint8 `(H, W, 3)`, and overlays it with an attention map.

    The map, `(rows, columns)`, is divided by its maximum. A frame marks `patch`, `(row, column)`.
    """
    picture = enlarge(picture)
    height, width = picture.shape[:2]
    unit = attention / max(float(attention.max()), 1e-30)
    rows, columns = (
        np.arange(size) * count // size for size, count in zip((height, width), attention.shape)
    )
    picture = to_uint8(overlaid(picture / 255, unit[rows[:, None], columns], opacity))
    if patch is not None:
        inside = (rows == patch[0])[:, None] & (columns == patch[1])
        picture[inside & ~binary_erosion(inside, iterations=3)] = 255
    return picture


def enlarge(picture):
    """Enlarges an image, uint8 `(H, W, 3)`, by the integer factor that brings its longer side
    closest to `SIDE`."""
    factor = max(1, round(SIDE / max(picture.shape[:2])))
    return picture.repeat(factor, 0).repeat(factor, 1)


def patch_at(x, y, size, grid):
    """Returns the patch `(row, column)` that contains a pixel of a picture of `size`, which is
    `(height, width)`."""
    return tuple(
        min(int(i) * count // side, count - 1) for i, side, count in zip((y, x), size, grid)
    )


async def add_policy(request, call_next):
    response = await call_next(request)
    response.headers["content-security-policy"] = POLICY
    return response


def serve(page, gradio, host, port):
    """Serves the page until Ctrl-C or SIGTERM."""
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=add_policy)]
    if host in LOCAL:  # reject other host names that resolve to this machine (DNS rebinding)
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL)))
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with files.explained_errors(
        "The page cannot be served", "Choose another port.", f"host={host!r}, port={port}"
    ):
        page.launch(
            server_name=host,
            server_port=port,
            quiet=True,
            prevent_thread_lock=True,
            ssr_mode=False,
            num_workers=0,
            footer_links=[],
            max_file_size="100mb",
            app_kwargs={"middleware": middleware},
            theme=gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        )
    visitors = "only this machine" if host in LOCAL else "anyone who can reach this machine"
    print(
        f"the page is at http://{host}:{port} ({visitors} can open it); press Ctrl-C to stop",
        flush=True,
    )
    stop.wait()
    page.close(verbose=False)
    print("stopped", flush=True)
