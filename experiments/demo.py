"""A page to try a model on: its best classes for images of yours, and what it looks at in them.

    python experiments/demo.py --model=runs/digits
    python experiments/demo.py --model=mine.keras --class_names=names.txt
    python experiments/demo.py --variant=ViT_B16 --weights=augreg --class_names=published

Only this machine can open the page (`--host=0.0.0.0` lets the whole network), and nothing is sent to any other. Images
are kept in memory and in a temporary folder until the page is closed or the command ends.
"""

import os
import signal
import socket
import tempfile
import threading

import command_line
import demo_model
import demo_pictures
from absl import flags

import keras_vit

LOCAL = ("127.0.0.1", "localhost")
TOP = 5  # classes
MAX_FILE_SIZE = "100mb"
# The page loads nothing from elsewhere, and its own server says so to the browser, which then refuses it too.
HEADERS = [
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; frame-ancestors 'none'",
    ),
]

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "", "A run's workdir, the folder of an export, or a .keras file.")
flags.DEFINE_string("variant", "", "Instead of a model: a constructor of keras_vit, such as ViT_B16, for --weights.")
flags.DEFINE_string("weights", "", "The name of published weights, a path, or a URL; random ones if not given.")
flags.DEFINE_string("class_names", "", "A text file, one name a line; 'published' for ImageNet's and ImageNet-21k's.")
flags.DEFINE_string("host", "127.0.0.1", "The address to listen on; 0.0.0.0 lets everyone in the network use the page.")
flags.DEFINE_integer("port", 7860, "The port to listen on.", lower_bound=1, upper_bound=65535)


def main(_):
    if bool(FLAGS.model) == bool(FLAGS.variant):
        raise ValueError(
            f"Either --model or --variant is needed. Received: model={FLAGS.model!r}, variant={FLAGS.variant!r}"
        )
    check_port(FLAGS.host, FLAGS.port)
    import_gradio()
    model = demo_model.load(FLAGS.model, FLAGS.variant, FLAGS.weights, FLAGS.class_names)
    with tempfile.TemporaryDirectory(prefix="keras_vit-demo-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        serve(build_page(model), FLAGS.host, FLAGS.port)


def check_port(host, port):
    """Raises a `ValueError` unless this process can listen there."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise ValueError(
            f"Nobody can listen there ({error.strerror or error}); --port takes another one. "
            f"Received: host={host!r}, port={port}"
        ) from error


def import_gradio():
    """The module, which sends nothing anywhere."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Gradio asks its own server whether it is up, and must not ask a proxy for that.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(
        filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), *LOCAL])
    )
    try:
        import gradio
    except ImportError as error:
        raise ImportError('The page needs Gradio: pip install "keras_vit[demo]"') from error
    return gradio


class Actions:
    """What the page computes when something is chosen on it. What a tab has chosen is in its own state.

    Args:
        model: a `demo_model.KerasModel` or `ServedModel`.
    """

    def __init__(self, model):
        self.model = model

    def read(self, paths):
        """Files to `(images, probabilities)`, HTML of sentences about files, and pictures for a gallery."""
        images, probabilities, sentences = demo_model.read_files(self.model, paths or [])
        best = [self._best(row, 1)[0] for row in probabilities]
        thumbnails = [
            (demo_pictures.enlarge(image.picture), f"{name} {100 * probability:.0f} %")
            for image, (_, name, probability) in zip(images, best)
        ]
        return (images, probabilities), demo_pictures.messages(sentences), thumbnails

    def show_classes(self, state, index):
        """HTML of the name and the best classes of an image."""
        images, probabilities = state
        return demo_pictures.class_bars(images[index].name, self._best(probabilities[index], TOP)) if images else ""

    def show_attention(self, state, index, patch, layer, head, opacity):
        """`[picture, its color scale, picture, its color scale]`: of all layers, and of one; None and "" for none."""
        if not state[0] or not self.model.has_attention:
            return [None, "", None, ""]
        image = state[0][min(index, len(state[0]) - 1)]
        parts = []
        for attention in self.model.attention(image, patch, int(layer), int(head) or None):
            if attention is None:
                parts += [None, ""]
            else:
                picture = demo_pictures.attention_picture(image.picture, attention, patch, opacity / 100)
                parts += [picture, demo_pictures.color_scale(attention)]
        return parts

    def patch_at(self, state, index, place):
        """The patch `(row, column)` at a pixel `(x, y)` of a picture."""
        size = demo_pictures.enlarge(state[0][index].picture).shape[:2]
        return demo_pictures.patch_at(*place, size, self.model.grid)

    def describe(self, patch):
        """Markdown of what the pictures show."""
        if patch is not None:
            return f"### What the patch in row {patch[0] + 1}, column {patch[1] + 1} attends to"
        click = "Click a patch in a picture to see what that one attends to." if self.model.grid else ""
        return f"### What the output attends to\n{click}"

    def _best(self, probabilities, top):
        return keras_vit.decode_predictions(probabilities[None], top, self.model.class_names)[0]


def build_page(model):
    """The `gradio.Blocks` of a model, a `demo_model.KerasModel` or `ServedModel`."""
    gradio = import_gradio()
    actions, layers, heads = Actions(model), model.layers, model.heads

    def read(paths, *choices):
        state, sentences, thumbnails = actions.read(paths)
        gallery = gradio.Gallery(thumbnails, selected_index=0 if thumbnails else None, visible=bool(thumbnails))
        return state, sentences, gallery, gradio.Column(visible=bool(thumbnails)), *show(state, 0, *choices)

    def show(state, index, *choices):
        pictures = actions.show_attention(state, index, None, *choices)
        return index, actions.show_classes(state, index), None, actions.describe(None), *pictures

    def look_at(state, index, patch, *choices):
        return patch, actions.describe(patch), *actions.show_attention(state, index, patch, *choices)

    # Gradio finds the event by its annotation.
    def choose_image(state, layer, head, opacity, event: gradio.SelectData):
        return show(state, min(event.index, len(state[0]) - 1), layer, head, opacity)

    def choose_patch(state, index, layer, head, opacity, event: gradio.SelectData):
        return look_at(state, index, actions.patch_at(state, index, event.index), layer, head, opacity)

    def choose_output(state, index, *choices):
        return look_at(state, index, None, *choices)

    def picture(caption, name):
        with gradio.Column(min_width=240, visible=bool(layers) or name == "rollout"):
            gradio.Markdown(caption)
            image = gradio.Image(
                show_label=False, interactive=False, format="png", buttons=["fullscreen"], elem_id=name
            )  # fmt: skip
            return image, gradio.HTML(elem_id=f"{name}_scale")

    with gradio.Blocks(title=f"keras_vit: {model.title}", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        state, index, patch = gradio.State(((), ())), gradio.State(0), gradio.State(None)
        gradio.HTML(demo_pictures.heading(model.title, model.facts, model.missing))
        with gradio.Row():
            with gradio.Column(scale=2, min_width=300):
                upload = gradio.File(
                    label="Drop or choose images", file_count="multiple", height=170, elem_id="upload"
                )  # fmt: skip
                notes = gradio.HTML(elem_id="messages")
                gallery = gradio.Gallery(
                    show_label=False, columns=3, height="auto", allow_preview=False, interactive=False, buttons=[],
                    format="png", visible=False, elem_id="gallery",
                )  # fmt: skip
            with gradio.Column(scale=5, visible=False, elem_id="results") as results:
                classes = gradio.HTML(elem_id="classes")
                with gradio.Column(visible=model.has_attention):
                    query = gradio.Markdown(actions.describe(None), elem_id="query")
                    with gradio.Row():
                        rollout, rollout_scale = picture("All layers multiplied (rollout)", "rollout")
                        attention, attention_scale = picture("One layer, chosen below", "attention")
                    with gradio.Row(visible=bool(layers)):
                        layer = gradio.Slider(
                            1, max(layers, 2), max(layers, 1), step=1, label="Layer", visible=layers > 1,
                            elem_id="layer",
                        )  # fmt: skip
                        head = gradio.Slider(0, max(heads, 1), 0, step=1, label="Head (0: mean of all)", elem_id="head")
                        opacity = gradio.Slider(0, 100, 60, step=5, label="Colors (%)")
                    output = gradio.Button(
                        "Back to what the output attends to", size="sm", visible=bool(layers), elem_id="output"
                    )  # fmt: skip
        choices, pictures = [layer, head, opacity], [rollout, rollout_scale, attention, attention_scale]
        options = {"concurrency_limit": 4, "api_visibility": "private"}
        shown = [index, classes, patch, query, *pictures]
        upload.change(read, [upload, *choices], [state, notes, gallery, results, *shown], **options)
        gallery.select(choose_image, [state, *choices], shown, **options)
        if layers:
            for image in (rollout, attention):
                image.select(choose_patch, [state, index, *choices], [patch, query, *pictures], **options)
            output.click(choose_output, [state, index, *choices], [patch, query, *pictures], **options)
        for slider in choices:  # of the moves of a slider, the last one counts
            slider.change(
                actions.show_attention, [state, index, patch, *choices], pictures, trigger_mode="always_last",
                show_progress="minimal", **options,
            )  # fmt: skip
    return page


class Headers:
    """ASGI middleware that adds the headers by which the page loads nothing from elsewhere."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def send_with_headers(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await self.app(scope, receive, send_with_headers if scope["type"] == "http" else send)


def serve(page, host, port):
    """Serves the page until Ctrl-C or SIGTERM."""
    gradio = import_gradio()
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    middleware = [Middleware(Headers)]
    if host in LOCAL:  # a page of another name that leads here is somebody else's
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL)))
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    page.launch(
        server_name=host, server_port=port, share=False, inbrowser=False, quiet=True, prevent_thread_lock=True,
        show_error=False, ssr_mode=False, run_history=False, enable_monitoring=False, mcp_server=False, pwa=False,
        num_workers=0, footer_links=[], max_file_size=MAX_FILE_SIZE, app_kwargs={"middleware": middleware},
        theme=gradio.themes.Default(primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["monospace"]),
    )  # fmt: skip
    reach = "only this machine can open it" if host in LOCAL else "everyone who reaches this machine can use it"
    print(f"the page is at http://{host}:{port} ({reach}); Ctrl-C ends it", flush=True)
    stop.wait()
    page.close(verbose=False)
    print("stopped", flush=True)


if __name__ == "__main__":
    command_line.run(main)
