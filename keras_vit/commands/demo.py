"""Serves a page to try a model on: its best classes for images of yours, and what it looks at in them.

    keras-vit demo --model=runs/digits
    keras-vit demo --model=mine.keras --class_names=names.txt
    keras-vit demo --variant=ViT_B16 --weights=augreg --class_names=published

Only this machine can open the page (`--host=0.0.0.0` lets the whole network), and nothing is sent to any other. Images
are kept in memory and in a temporary folder until the page is closed or the command ends.
"""

import os
import signal
import socket
import tempfile
import threading

from absl import flags

from keras_vit.commands import demo_model, shared_flags

FLAGS = flags.FLAGS
LOCAL = ("127.0.0.1", "localhost")
TOP = 5  # classes
# The page loads nothing from elsewhere, and the browser is told to refuse it.
HEADERS = [
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; frame-ancestors 'none'",
    ),
]


def define_flags():
    shared_flags.define_model()
    shared_flags.define_class_names()
    flags.DEFINE_string("host", "127.0.0.1", "The address to listen on; 0.0.0.0 lets the whole network use the page.")
    flags.DEFINE_integer("port", 7860, "The port to listen on.", lower_bound=1, upper_bound=65535)


def main():
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((FLAGS.host, FLAGS.port))
    except OSError as error:
        raise ValueError(
            f"Nobody can listen there ({error.strerror or error}); --port takes another one. "
            f"Received: host={FLAGS.host!r}, port={FLAGS.port}"
        ) from error
    import_gradio()
    model = demo_model.load(FLAGS.model, FLAGS.variant, FLAGS.weights, FLAGS.class_names)
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


def build_page(model):
    """The `gradio.Blocks` of a `demo_model.KerasModel`. What a tab has chosen is in its own state."""
    gradio, layers = import_gradio(), model.layers
    click = "Click a patch in a picture to see what that one attends to."

    def read(paths, *choices):
        images, probabilities, sentences = demo_model.read_files(model, paths or [])
        captions = [f"{image.name}: {model.class_names[row.argmax()]}" for image, row in zip(images, probabilities)]
        thumbnails = [(demo_model.enlarge(image.picture), text) for image, text in zip(images, captions)]
        gallery = gradio.Gallery(thumbnails, selected_index=0 if thumbnails else None, visible=bool(thumbnails))
        state = (images, probabilities)
        notes = demo_model.messages(sentences)
        return state, notes, gallery, gradio.Column(visible=bool(thumbnails)), *show(state, 0, *choices)

    def show(state, index, *choices):
        images, probabilities = state
        label = gradio.Label(label="Best classes")
        if images:
            shares = dict(zip(model.class_names, map(float, probabilities[index])))
            label = gradio.Label(shares, label=f"Best classes of {images[index].name}")
        return index, label, *look_at(state, index, None, *choices)

    def look_at(state, index, patch, *choices):
        title = "the output" if patch is None else f"the patch in row {patch[0] + 1}, column {patch[1] + 1}"
        text = f"### What {title} attends to\n{click if patch is None else ''}"
        return patch, text, *draw(state, index, patch, *choices)

    def draw(state, index, patch, layer, head, opacity):
        """`[picture, its scale, picture, its scale]`: of all layers, and of one."""
        if not state[0] or not layers:
            return [None, "", None, ""]
        image, parts = state[0][index], []
        for attention in model.attention(image, patch, int(layer), int(head) or None):
            parts.append(demo_model.attention_picture(image.picture, attention, patch, opacity / 100))
            parts.append(f"dark: 0 %, bright: {100 * attention.max():.3g} % of its attention")
        return parts

    # Gradio finds the event by its annotation.
    def choose_image(state, layer, head, opacity, event: gradio.SelectData):
        return show(state, min(event.index, len(state[0]) - 1), layer, head, opacity)

    def choose_patch(state, index, layer, head, opacity, event: gradio.SelectData):
        size = demo_model.enlarge(state[0][index].picture).shape[:2]
        return look_at(state, index, demo_model.patch_at(*event.index, size, model.grid), layer, head, opacity)

    def choose_output(state, index, *choices):
        return look_at(state, index, None, *choices)

    def picture(caption, name):
        with gradio.Column(min_width=240):
            gradio.Markdown(caption)
            options = {"interactive": False, "format": "png", "buttons": ["fullscreen"]}
            return gradio.Image(show_label=False, elem_id=name, **options), gradio.Markdown(elem_id=f"{name}_scale")

    with gradio.Blocks(title=f"keras_vit: {model.title}", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        state, index, patch = gradio.State(((), ())), gradio.State(0), gradio.State(None)
        gradio.HTML(demo_model.heading(model.title, model.facts, model.missing))
        with gradio.Row():
            with gradio.Column(scale=2, min_width=300):
                upload = gradio.File(label="Drop or choose images", file_count="multiple", height=170, elem_id="upload")
                notes = gradio.HTML(elem_id="messages")
                gallery = gradio.Gallery(
                    show_label=False, columns=3, height="auto", allow_preview=False, interactive=False, buttons=[],
                    format="png", visible=False, elem_id="gallery",
                )  # fmt: skip
            with gradio.Column(scale=5, visible=False, elem_id="results") as results:
                classes = gradio.Label(num_top_classes=TOP, elem_id="classes")
                with gradio.Column(visible=bool(layers)):
                    query = gradio.Markdown(elem_id="query")
                    with gradio.Row():
                        rollout, rollout_scale = picture("All layers multiplied (rollout)", "rollout")
                        attention, attention_scale = picture("One layer, chosen below", "attention")
                    with gradio.Row():
                        layer = gradio.Slider(
                            1, max(layers, 2), max(layers, 1), step=1, label="Layer", visible=layers > 1,
                            elem_id="layer",
                        )  # fmt: skip
                        head = gradio.Slider(0, max(model.heads, 1), 0, step=1, label="Head (0: mean of all)")
                        opacity = gradio.Slider(0, 100, 60, step=5, label="Colors (%)")
                    output = gradio.Button(
                        "Back to what the output attends to", size="sm", elem_id="output"
                    )  # fmt: skip
        choices, pictures = [layer, head, opacity], [rollout, rollout_scale, attention, attention_scale]
        options = {"concurrency_limit": 4, "api_visibility": "private"}
        shown = [index, classes, patch, query, *pictures]
        upload.change(read, [upload, *choices], [state, notes, gallery, results, *shown], **options)
        gallery.select(choose_image, [state, *choices], shown, **options)
        for image in (rollout, attention):
            image.select(choose_patch, [state, index, *choices], [patch, query, *pictures], **options)
        output.click(choose_output, [state, index, *choices], [patch, query, *pictures], **options)
        for slider in choices:  # of the moves of a slider, the last one counts
            slider.change(
                draw, [state, index, patch, *choices], pictures, trigger_mode="always_last", show_progress="minimal",
                **options,
            )  # fmt: skip
    return page


def with_headers(app):
    """ASGI middleware that adds `HEADERS`."""

    async def add(scope, receive, send):
        async def send_with_headers(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await app(scope, receive, send_with_headers if scope["type"] == "http" else send)

    return add


def serve(page, host, port):
    """Serves the page until Ctrl-C or SIGTERM."""
    gradio = import_gradio()
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    middleware = [Middleware(with_headers)]
    if host in LOCAL:  # a page of another name that leads here is somebody else's
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL)))
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    page.launch(
        server_name=host, server_port=port, share=False, inbrowser=False, quiet=True, prevent_thread_lock=True,
        show_error=False, ssr_mode=False, run_history=False, enable_monitoring=False, mcp_server=False, pwa=False,
        num_workers=0, footer_links=[], max_file_size="100mb", app_kwargs={"middleware": middleware},
        theme=gradio.themes.Default(primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["monospace"]),
    )  # fmt: skip
    reach = "only this machine can open it" if host in LOCAL else "everyone who reaches this machine can use it"
    print(f"the page is at http://{host}:{port} ({reach}); Ctrl-C ends it", flush=True)
    stop.wait()
    page.close(verbose=False)
    print("stopped", flush=True)
