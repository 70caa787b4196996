"""Measures latency and throughput of an export in the C++ server and of the bare model.

    python tests/serving/benchmark.py --model=ViT_B16 --batch_sizes=1,8

Each round times a REST request with image files, a REST request with a tensor, and the bare model
in this process. The time of the bare model includes decoding the images. The images are 500x375
JPEGs, and the weights are random. `first / median` divides the duration of a new server's first
request by the median duration of its next seven requests. The result is the median over `--starts`
servers. A server finishes its warm-up before the first request.
"""

import base64
import functools
import http.client
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import app, flags, logging
from rest_server import RestServer

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
    """Returns how long a function without arguments runs."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Client:
    """A client with one connection. It also builds the request bodies."""

    def __init__(self, server, file, image):
        self.connection = http.client.HTTPConnection("localhost", server.port, timeout=600)
        self.path = f"/v1/models/{server.flags['model_name']}:predict"
        self.instances = {
            "serving_default": {"b64": base64.b64encode(file).decode()},
            "tensor": image.tolist(),
        }

    def body(self, signature, batch_size):
        instances = batch_size * [self.instances[signature]]
        return json.dumps({"signature_name": signature, "instances": instances})

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
            predict = functools.partial(client.predict, client.body("serving_default", 1))
            first, *others = [seconds(predict) for _ in range(8)]
            ratios.append(first / np.median(others))
    return float(np.median(ratios))


def durations(works):
    """Runs each function once per round and returns lists of seconds, without a warm-up round."""
    for work in works.values():
        work()
    taken = {name: [] for name in works}
    for _ in range(FLAGS.rounds):
        for name, work in works.items():
            taken[name].append(seconds(work))
    return taken


def measure_batch(batch_size, client, decode, bare_model):
    """Times the two kinds of requests and the bare model with one batch size."""
    files_body = client.body("serving_default", batch_size)
    tensor_body = client.body("tensor", batch_size)
    taken = durations(
        {
            BARE: lambda: bare_model(tf.stack([decode() for _ in range(batch_size)])).numpy(),
            BYTES: lambda: client.predict(files_body),
            TENSOR: lambda: client.predict(tensor_body),
        }
    )
    results = {name: _summary(times, batch_size) for name, times in taken.items()}
    results["bytes / bare"] = float(np.median(taken[BYTES]) / np.median(taken[BARE]))
    return results


def main(_):
    logging.set_verbosity(logging.WARNING)  # TensorFlow logs every file it writes
    file = photo()
    model = getattr(keras_vit, FLAGS.model)()

    def decode():
        return tf.image.resize(tf.io.decode_jpeg(file), model.input_shape[1:3]) / 127.5 - 1.0

    image = decode().numpy()
    bare_model = tf.function(lambda images: model(images, training=False))
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        base = f"{folder}/model"
        results["export, s"] = seconds(lambda: export.saved_model(model, base))
        results["first / median"] = first_over_median(base, file, image)
        with RestServer(base, max_request_megabytes=512) as server:
            client = Client(server, file, image)
            for batch_size in map(int, FLAGS.batch_sizes):
                results[f"batch {batch_size}"] = measure_batch(
                    batch_size, client, decode, bare_model
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
        for measured in (BARE, BYTES, TENSOR):
            numbers = [f"{number:10.3f} {unit}" for unit, number in value[measured].items()]
            print(f"    {measured:25}" + "".join(numbers))


if __name__ == "__main__":
    app.run(main)
