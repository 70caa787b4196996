"""Files for TensorFlow Serving's flags, as text protos: which models, how requests are merged, what is measured."""

import os

# Requests are merged up to this; more gain little throughput and cost latency.
_MERGED = 32

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
# One bad request fails those that it was merged with.
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


def write_server_files(folder, name, max_batch_size):
    """Writes `models.config`, `batching.config` and `monitoring.config`.

    Args:
        folder: where to.
        name: of the model on the server, whose versions are in `/models/<name>`.
        max_batch_size: what the signatures accept at most.
    """
    largest = min(_MERGED, max_batch_size)
    sizes = [2**power for power in range(largest.bit_length()) if 2**power < largest] + [largest]
    allowed = "\n".join(f"allowed_batch_sizes: {size}" for size in sizes)
    for file, text in (
        ("models.config", _MODELS.format(name=name)),
        ("batching.config", _BATCHING.format(largest=largest, allowed=allowed)),
        ("monitoring.config", _MONITORING),
    ):
        with open(os.path.join(folder, file), "w", encoding="utf-8") as out:
            out.write(text)
