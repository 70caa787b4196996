"""Measures latency and throughput of an export in the C++ server and of the bare model.

    python tests/serving/benchmark.py --model=ViT_B16 --batch_sizes=1,8

Each round times a REST request with image files, a REST request with a tensor, and the bare model
in this process. The time of the bare model includes decoding the images. The images are 500x375
JPEGs, and the weights are random. `first / median` divides the duration of a new server's first
request by the median duration of its next seven requests. The result is the median over `--starts`
servers. A server finishes its warm-up before the first request.
"""

import base64
import http.client
import json
import runpy
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import app, flags, logging

import keras_vit
from keras_vit import export

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "ViT_B16", "Constructor in keras_vit.")
flags.DEFINE_list("batch_sizes", ["1", "8"], "Images per request.")
flags.DEFINE_integer(
    "rounds", 20, "Measurements per batch size, after one warm-up round.", lower_bound=1
)
flags.DEFINE_integer(
    "starts", 3, "Number of servers to start; the first request to each is timed.", lower_bound=1
)
flags.DEFINE_string("output", "", "JSON file for the results.")

RestServer = runpy.run_path(str(Path(__file__).parent / "rest_server.py"))["RestServer"]
BARE = "decoding and bare model"
BYTES = "image files over REST"
TENSOR = "tensor over REST"


def photo():
    """Returns a 500x375 JPEG of smooth colors and noise. Its file size is typical of a photo."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (12, 16, 3)).astype(np.float32)
    image = tf.image.resize(coarse, (375, 500), "bicubic") + rng.normal(0, 12, (375, 500, 3))
    return tf.io.encode_jpeg(tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8), quality=90).numpy()


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Client:
    """A client with one connection. It also builds the request bodies."""

    def __init__(self, server, file, image):
        self.connection = http.client.HTTPConnection("localhost", server.port, timeout=600)
        self.path = f"/v1/models/{server.flags['model_name']}:predict"
        self.rows = {
            "serving_default": {"b64": base64.b64encode(file).decode()},
            "tensor": image.tolist(),
        }

    def body(self, signature, batch_size):
        return json.dumps(
            {"signature_name": signature, "instances": batch_size * [self.rows[signature]]}
        )

    def predict(self, body):
        self.connection.request("POST", self.path, body)
        response = self.connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise ValueError(
                f"The server rejected the request: {content[:300]!r} Received: HTTP "
                f"{response.status}"
            )


def first_over_median(folder, file, image):
    """Measures `first / median`, which the module docstring defines."""
    ratios = []
    for _ in range(FLAGS.starts):
        with RestServer(folder) as server:
            client = Client(server, file, image)
            body = client.body("serving_default", 1)
            first, *others = [seconds(lambda: client.predict(body)) for _ in range(8)]  # noqa: B023
            ratios.append(first / np.median(others))
    return float(np.median(ratios))


def main(_):
    logging.set_verbosity(logging.WARNING)  # TensorFlow logs every file it writes
    file = photo()
    model = getattr(keras_vit, FLAGS.model)()
    size = model.input_shape[1:3]
    decode = lambda: tf.image.resize(tf.io.decode_jpeg(file), size) / 127.5 - 1.0  # noqa: E731
    image = decode().numpy()
    bare = tf.function(lambda images: model(images, training=False))
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        base = f"{folder}/model"
        results["export, s"] = seconds(lambda: export.saved_model(model, base))
        results["first / median"] = first_over_median(base, file, image)
        with RestServer(base, max_request_megabytes=512) as server:
            client = Client(server, file, image)
            for batch_size in map(int, FLAGS.batch_sizes):
                bodies = {
                    BYTES: client.body("serving_default", batch_size),
                    TENSOR: client.body("tensor", batch_size),
                }
                works = {
                    BARE: lambda n=batch_size: bare(tf.stack([decode() for _ in range(n)])).numpy()
                }
                works |= {
                    name: lambda body=body: client.predict(body) for name, body in bodies.items()
                }
                taken = {name: [] for name in works}
                for number in range(FLAGS.rounds + 1):
                    for name, work in works.items():
                        duration = seconds(work)
                        if number:
                            taken[name].append(duration)
                results[f"batch {batch_size}"] = {
                    name: _summary(times, batch_size) for name, times in taken.items()
                }
                results[f"batch {batch_size}"]["bytes / bare"] = float(
                    np.median(taken[BYTES]) / np.median(taken[BARE])
                )
            results["server, MB"] = server.memory() / 1e6
    _print(results)
    if FLAGS.output:
        Path(FLAGS.output).write_text(json.dumps(results, indent=2))


def _summary(times, batch_size):
    median = float(np.median(times))
    return {
        "median, s": median,
        "99th, s": float(np.percentile(times, 99)),
        "images/s": batch_size / median,
    }


def _print(results):
    print(f"{FLAGS.model}, {FLAGS.rounds} rounds")
    for name, value in results.items():
        if isinstance(value, float):
            print(f"{name}: {value:.2f}")
            continue
        print(f"{name}: bytes / bare {value['bytes / bare']:.3f}")
        for way in (BARE, BYTES, TENSOR):
            print(
                f"    {way:25}"
                + "".join(f"{number:10.3f} {unit}" for unit, number in value[way].items())
            )


if __name__ == "__main__":
    app.run(main)
