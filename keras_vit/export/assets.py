"""The files of a version that are not its graph: for the server, and for the user of the model."""

import os

import tensorflow as tf

from keras_vit.export import messages

LABELS = "assets/labels.txt"
MODEL = "assets.extra/model.keras"
WARMUP = "assets.extra/tf_serving_warmup_requests"  # where TensorFlow Serving looks for it

# Requests are merged up to this batch size; a larger one gains little throughput and costs latency.
_LARGEST_MERGED_BATCH = 32

_MODELS = """\
# --model_config_file
model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"
    model_platform: "tensorflow"
  }}
}}
"""
_BATCHING = """\
# --enable_batching --batching_parameters_file
# A bad request fails the requests that it was merged with, too.
max_batch_size {{ value: {largest} }}
batch_timeout_micros {{ value: 2000 }}
max_enqueued_batches {{ value: 100 }}
num_batch_threads {{ value: 4 }}
{allowed}
"""
_MONITORING = """\
# --monitoring_config_file
prometheus_config {
  enable: true
  path: "/monitoring/prometheus/metrics"
}
"""


def write_assets(folder, *, name, model, class_names, max_batch_size, signatures, image_files):
    """Writes the labels, an example image, the `.keras` file, the warm-up and the files for TensorFlow Serving's flags.

    Args:
        folder: the folder of the version.
        name: the name of the model on the server.
        model: the model as it was trained.
        class_names: the name of each class, in order.
        max_batch_size: the largest batch that the signatures accept.
        signatures: `{name: Signature}`.
        image_files: encoded images, a list of bytes.
    """
    for part in ("assets", "assets.extra"):
        os.makedirs(os.path.join(folder, part), exist_ok=True)
    _write_text(os.path.join(folder, LABELS), "\n".join(class_names) + "\n")
    with open(os.path.join(folder, example_path(model.input_shape[-1])), "wb") as file:
        file.write(image_files[0])
    model.save(os.path.join(folder, MODEL))
    write_warmup(folder, name, signatures, image_files[:1])
    write_server_files(os.path.join(folder, "assets.extra"), name, max_batch_size)


def example_path(channels):
    """Where the example image is in a version for images of some channels, which JPEG has 1 or 3 of."""
    return f"assets.extra/example.{'png' if channels in (2, 4) else 'jpg'}"


def write_warmup(folder, name, signatures, image_files):
    """Writes a request for every signature, which a server runs before it is ready: a graph's first run is its slowest.

    Args:
        folder: the folder of the version; it has a folder `assets.extra`.
        name: the name of the model on the server.
        signatures: `{name: Signature}`.
        image_files: encoded images, a list of bytes; the batch of each request.
    """
    with tf.io.TFRecordWriter(os.path.join(folder, WARMUP)) as file:
        for signature_name, signature in signatures.items():
            log = messages.PredictionLog()
            request = log.predict_log.request
            request.model_spec.name = name
            request.model_spec.signature_name = signature_name
            tensor = signature.example_inputs(image_files)
            request.inputs[signature.spec.name].CopyFrom(tf.make_tensor_proto(tensor))
            file.write(log.SerializeToString())


def write_server_files(folder, name, max_batch_size):
    """Writes the text protos that TensorFlow Serving's flags name: `models.config` (which models are served),
    `batching.config` (how requests are merged) and `monitoring.config` (where metrics are read).

    Args:
        folder: the folder to write to.
        name: the name of the model on the server, whose versions are in `/models/<name>`.
        max_batch_size: the largest batch that the signatures accept.
    """
    largest = min(_LARGEST_MERGED_BATCH, max_batch_size)
    sizes = [2**power for power in range(largest.bit_length()) if 2**power < largest] + [largest]
    allowed = "\n".join(f"allowed_batch_sizes: {size}" for size in sizes)
    for file_name, text in (
        ("models.config", _MODELS.format(name=name)),
        ("batching.config", _BATCHING.format(largest=largest, allowed=allowed)),
        ("monitoring.config", _MONITORING),
    ):
        _write_text(os.path.join(folder, file_name), text)


def _write_text(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
