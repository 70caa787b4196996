"""Serves a page to try a model on: its best classes for an image of yours, and what it looks at in it.

    keras-vit demo --model=runs/digits
    keras-vit demo --model=mine.keras --class_names=names.txt
    keras-vit demo --variant=ViT_B16 --weights=augreg --class_names=published

Only this machine can open the page (`--host=0.0.0.0` lets the whole network), and nothing is sent to any other. Images
are kept in memory and in a temporary folder until the page is closed or the command ends.
"""

import os
import signal
import tempfile
import threading
from pathlib import Path

import numpy as np
from absl import flags
from scipy.ndimage import binary_erosion

from keras_vit import inspection
from keras_vit.commands import shared_flags
from keras_vit.commands.image_files import Classifier
from keras_vit.models.any_model import find_vision_transformer
from keras_vit.plots import overlaid

FLAGS = flags.FLAGS
LOCAL = ("127.0.0.1", "localhost")
TOP = 5  # classes
SIDE = 448  # of a picture, in pixels: small images are enlarged by a whole number to about this
# The page loads nothing from elsewhere, and the browser is told to refuse it.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; frame-ancestors 'none'"
)


def define_flags():
    shared_flags.define_model()
    shared_flags.define_class_names()
    flags.DEFINE_string("host", "127.0.0.1", "The address to listen on; 0.0.0.0 lets the whole network use the page.")
    flags.DEFINE_integer("port", 7860, "The port to listen on.", lower_bound=1, upper_bound=65535)


def main():
    import_gradio()
    model = DemoModel(*shared_flags.chosen_model(), FLAGS.class_names)
    with tempfile.TemporaryDirectory(prefix="keras_vit-demo-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        serve(build_page(model), FLAGS.host, FLAGS.port)


def import_gradio():
    """The module, which sends nothing anywhere."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Gradio asks its own server whether it is up, and must not ask a proxy for that.
    proxies = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, [proxies, *LOCAL]))
    try:
        import gradio
    except ImportError as error:
        raise ImportError('The page needs Gradio: pip install "keras_vit[demo]"') from error
    return gradio


class DemoModel:
    """A model, its class names, and the grid, layers and heads of its attention: None and 0 if it has none."""

    grid, layers, heads = None, 0, 0

    def __init__(self, model, details, title, class_names=""):
        self._classifier, self._model = Classifier(model, details, class_names), model
        self.title, self.class_names, self.reader = title, self._classifier.class_names, self._classifier.reader
        height, width, _ = model.input_shape[1:]
        self.facts = f"{model.count_params():,} parameters; images of {width} x {height} pixels"
        try:
            vit = find_vision_transformer(model)
            vit.check_grid()
        except ValueError:
            self.facts += "; no tokens that attend to one another, so there is no attention to show"
        else:
            self.grid, self.layers, self.heads = vit.grid, vit.num_layers, vit.num_heads
            self.facts += f"; {self.layers} layers of {self.heads} heads, {self.grid[0]} x {self.grid[1]} patches"

    def probabilities(self, image):
        """Probabilities by class name of an image, float32 `(H, W, C)`."""
        return dict(zip(self.class_names, map(float, self._classifier.probabilities(image[None])[0])))

    def attention(self, image, patch=None, layer=-1, head=None):
        """Two maps `(rows, columns)` of an image: see `keras_vit.inspection.token_attention`."""
        rollout, attention = inspection.token_attention(self._model, image[None], patch, layer, head)
        return rollout[0], attention[0]


def build_page(model):
    """The `gradio.Blocks` of a `DemoModel`; the image and the patch that a tab has chosen are in its own state."""
    gradio = import_gradio()

    def read(path):
        """The state of an uploaded image, `(input, picture)`, no patch, its classes, and the file as it is."""
        if path is None:
            return None, None, None, None
        try:
            image, picture = model.reader.read(Path(path).name, Path(path).read_bytes())
        except ValueError as error:
            raise gradio.Error(str(error), print_exception=False) from error
        return (image, picture), None, model.probabilities(image), path

    def choose_patch(state, event: gradio.SelectData):  # Gradio finds the event by its annotation
        return patch_at(*event.index, enlarge(state[1]).shape[:2], model.grid)

    def draw(state, patch, layer, head):
        """The heading and both pictures: of all layers, and of one."""
        if state is None or not model.layers:
            return "", None, None
        query = "the output" if patch is None else f"the patch in row {patch[0] + 1}, column {patch[1] + 1}"
        maps = model.attention(state[0], patch, int(layer), int(head) or None)
        pictures = []
        for name, attention in zip(("All layers (rollout)", f"Layer {int(layer)}"), maps):
            label = f"{name}: 0 to {100 * attention.max():.3g} %"
            pictures.append(gradio.Image(attention_picture(state[1], attention, patch), label=label))
        return f"### What {query} attends to", *pictures

    with gradio.Blocks(title=f"keras_vit: {model.title}", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        state, patch = gradio.State(None), gradio.State(None)
        gradio.Markdown(f"# {model.title}\n{model.facts}")
        with gradio.Row():
            with gradio.Column(scale=2, min_width=300):
                upload = gradio.File(label="Drop or choose an image", height=170, elem_id="upload")
                original = gradio.Image(
                    label="The file", type="filepath", interactive=False, buttons=["fullscreen"], elem_id="original"
                )
                classes = gradio.Label(label="Best classes", num_top_classes=TOP, elem_id="classes")
            with gradio.Column(scale=5, visible=model.layers > 0):
                query = gradio.Markdown(elem_id="query")
                with gradio.Row():
                    options = {"interactive": False, "format": "png", "buttons": ["fullscreen"]}
                    rollout, attention = (gradio.Image(elem_id=name, **options) for name in ("rollout", "attention"))
                gradio.Markdown("Click a patch in a picture to see what that one attends to.")
                with gradio.Row():
                    layer = gradio.Slider(
                        1, max(model.layers, 2), max(model.layers, 1), step=1, label="Layer", elem_id="layer"
                    )
                    head = gradio.Slider(0, max(model.heads, 1), 0, step=1, label="Head (0: mean of all)")
                output = gradio.Button("Back to what the output attends to", size="sm", elem_id="output")
        # One request at a time reads the model.
        options = {"concurrency_limit": 1, "concurrency_id": "model", "api_visibility": "private"}
        drawing = {"fn": draw, "inputs": [state, patch, layer, head], "outputs": [query, rollout, attention], **options}
        upload.change(read, upload, [state, patch, classes, original], **options).then(**drawing)
        for image in (rollout, attention):
            image.select(choose_patch, state, patch, **options).then(**drawing)
        output.click(lambda: None, None, patch, **options).then(**drawing)
        for slider in (layer, head):  # of the moves of a slider, the last one counts
            slider.change(trigger_mode="always_last", **drawing)
    return page


def attention_picture(picture, attention, patch=None, opacity=0.6):
    """An image, uint8 `(H, W, 3)`, enlarged, under the colors of an attention map `(rows, columns)`; the largest value
    is the brightest color, and `patch`, `(row, column)`, gets a frame."""
    picture = enlarge(picture)
    height, width = picture.shape[:2]
    unit = attention / max(float(attention.max()), 1e-30)
    rows, columns = (np.arange(size) * count // size for size, count in zip((height, width), attention.shape))
    picture = np.uint8(np.rint(255 * overlaid(picture / 255, unit[rows[:, None], columns], opacity)))
    if patch is not None:
        inside = (rows == patch[0])[:, None] & (columns == patch[1])
        picture[inside & ~binary_erosion(inside, iterations=3)] = 255
    return picture


def enlarge(picture):
    """uint8 `(H, W, 3)`, each pixel repeated so that the longer side is about `SIDE`."""
    factor = max(1, round(SIDE / max(picture.shape[:2])))
    return picture.repeat(factor, 0).repeat(factor, 1)


def patch_at(x, y, size, grid):
    """The patch `(row, column)` of a pixel of a picture of `size`, `(height, width)`."""
    return tuple(min(int(i) * count // side, count - 1) for i, side, count in zip((y, x), size, grid))


async def add_policy(request, call_next):
    response = await call_next(request)
    response.headers["content-security-policy"] = POLICY
    return response


def serve(page, host, port):
    """Serves the page until Ctrl-C or SIGTERM."""
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=add_policy)]
    if host in LOCAL:  # a page of another name that leads here is somebody else's
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL)))
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        page.launch(
            server_name=host, server_port=port, quiet=True, prevent_thread_lock=True, ssr_mode=False, num_workers=0,
            footer_links=[], max_file_size="100mb", app_kwargs={"middleware": middleware},
            theme=import_gradio().themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        )  # fmt: skip
    except OSError as error:
        raise ValueError(f"The page cannot be served there ({error}). Received: host={host!r}, port={port}") from error
    reach = "only this machine can open it" if host in LOCAL else "everyone who reaches this machine can use it"
    print(f"the page is at http://{host}:{port} ({reach}); Ctrl-C ends it", flush=True)
    stop.wait()
    page.close(verbose=False)
    print("stopped", flush=True)
