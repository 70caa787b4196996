"""What lies beside the graph, as a server and its user read it."""

import base64
import concurrent.futures
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2

from keras_vit import export
from keras_vit.export import messages
from keras_vit.export.server_files import write_server_files

from .conftest import NAMES

STUBS = "tensorflow-serving-api is not installed (pip install --no-deps tensorflow-serving-api)"


def test_the_labels_are_one_a_line(exported):
    assert Path(exported[0], "assets/labels.txt").read_text(encoding="utf-8").splitlines() == list(NAMES)


def test_the_warm_up_asks_every_signature_and_gets_answers(exported):
    signatures = tf.saved_model.load(exported[0]).signatures
    asked = []
    for record in tf.data.TFRecordDataset(f"{exported[0]}/assets.extra/tf_serving_warmup_requests"):
        request = messages.PredictionLog.FromString(record.numpy()).predict_log.request
        assert request.model_spec.name == "animals"
        inputs = {name: tf.constant(tf.make_ndarray(tensor)) for name, tensor in request.inputs.items()}
        answer = signatures[request.model_spec.signature_name](**inputs)
        assert all(tensor.shape[0] == 1 for tensor in answer.values())
        asked.append(request.model_spec.signature_name)
    assert asked == list(export.SIGNATURES)


def test_serving_reads_the_warm_up(exported):
    pytest.importorskip("tensorflow_serving.apis", reason=STUBS)
    from tensorflow_serving.apis import prediction_log_pb2

    records = tf.data.TFRecordDataset(f"{exported[0]}/assets.extra/tf_serving_warmup_requests")
    logs = [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]
    assert [log.WhichOneof("log_type") for log in logs] == ["predict_log"] * 3


def test_serving_reads_which_models_there_are(exported):
    pytest.importorskip("tensorflow_serving.config", reason=STUBS)
    from tensorflow_serving.config import model_server_config_pb2

    text = Path(exported[0], "assets.extra/models.config").read_text()
    (model,) = text_format.Parse(text, model_server_config_pb2.ModelServerConfig()).model_config_list.config
    assert (model.name, model.base_path, model.model_platform) == ("animals", "/models/animals", "tensorflow")


# These two messages of TensorFlow Serving are in no stubs: its documented fields, described here.
CONFIGS = """
name: "configs.proto" package: "configs" syntax: "proto3" dependency: "google/protobuf/wrappers.proto"
message_type {
  name: "Batching"
  field { name: "max_batch_size" number: 1 type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" }
  field { name: "batch_timeout_micros" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" }
  field { name: "max_enqueued_batches" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" }
  field { name: "num_batch_threads" number: 4 type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" }
  field { name: "allowed_batch_sizes" number: 6 type: TYPE_INT64 label: LABEL_REPEATED }
}
message_type {
  name: "Prometheus"
  field { name: "enable" number: 1 type: TYPE_BOOL }
  field { name: "path" number: 2 type: TYPE_STRING }
}
message_type {
  name: "Monitoring"
  field { name: "prometheus_config" number: 1 type: TYPE_MESSAGE type_name: ".configs.Prometheus" }
}
"""


@pytest.mark.parametrize(
    ("most", "sizes"), [(512, [1, 2, 4, 8, 16, 32]), (7, [1, 2, 4, 7]), (1, [1]), (32, [1, 2, 4, 8, 16, 32])]
)
def test_the_files_for_the_server_are_text_protos(most, sizes, tmp_path):
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(text_format.Parse(CONFIGS, descriptor_pb2.FileDescriptorProto()))
    new = lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"configs.{name}"))()  # noqa: E731
    write_server_files(tmp_path, "animals", most)
    batching = text_format.Parse((tmp_path / "batching.config").read_text(), new("Batching"))
    assert list(batching.allowed_batch_sizes) == sizes and batching.max_batch_size.value == sizes[-1]
    monitoring = text_format.Parse((tmp_path / "monitoring.config").read_text(), new("Monitoring"))
    assert monitoring.prometheus_config.enable and monitoring.prometheus_config.path.startswith("/")


class Rest(http.server.BaseHTTPRequestHandler):
    """A stand-in that answers the requests of the README from the signatures."""

    def do_GET(self):
        self.answer({"model_version_status": [{"state": "AVAILABLE"}]})

    def do_POST(self):
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["instances"]
        answer = self.server.signature(image_bytes=tf.constant([base64.b64decode(row["b64"]) for row in rows]))
        self.answer({"predictions": [{"top_classes": [name.decode() for name in answer["top_classes"].numpy()[0]]}]})

    def answer(self, content):
        self.server.asked.append(f"{self.command} {self.path}")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def readme(exported):
    """The lines of an export's README by their language, and its default signature."""
    text = Path(exported[0], "README.md").read_text()
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    signature = tf.saved_model.load(exported[0]).signatures["serving_default"]
    with open(f"{exported[0]}/assets.extra/example.jpg", "rb") as file:
        best = signature(image_bytes=tf.constant([file.read()]))["top_classes"].numpy()[0]
    return blocks, signature, [name.decode() for name in best]


def test_the_curl_lines_of_the_readme_work_as_pasted(exported, readme):
    blocks, signature, best = readme
    server = http.server.HTTPServer(("localhost", 0), Rest)
    server.signature, server.asked = signature, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    answers = []
    for line in [code for language, code in blocks if language == "sh" and "curl" in code]:
        line = line.replace("localhost:8501", f"localhost:{server.server_port}")
        done = subprocess.run(["bash", "-c", line], cwd=exported[0], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    server.shutdown()
    server.server_close()
    assert server.asked == ["GET /v1/models/animals", "POST /v1/models/animals:predict"]
    assert answers[1]["predictions"][0]["top_classes"] == best


def test_the_grpc_lines_of_the_readme_work_as_pasted(exported, readme):
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
    blocks, signature, best = readme

    def predict(request, _):
        assert request.model_spec.name == "animals"
        response = messages.PredictResponse()
        given = {name: tf.constant(tf.make_ndarray(tensor)) for name, tensor in request.inputs.items()}
        for name, tensor in signature(**given).items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(tensor))
        return response

    handler = grpc.unary_unary_rpc_method_handler(
        predict,
        request_deserializer=messages.PredictRequest.FromString,
        response_serializer=messages.PredictResponse.SerializeToString,
    )
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    service = "tensorflow.serving.PredictionService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Predict": handler})])
    port = server.add_insecure_port("localhost:0")
    server.start()
    (code,) = [code for language, code in blocks if language == "python" and "grpc" in code]
    done = subprocess.run(
        [sys.executable, "-c", code.replace("localhost:8500", f"localhost:{port}")],
        cwd=exported[0],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    server.stop(None)
    assert done.returncode == 0, done.stderr
    assert best[0].encode().__repr__() in done.stdout


def test_the_python_lines_of_the_readme_run(exported, readme, monkeypatch):
    monkeypatch.chdir(exported[0])
    for language, code in readme[0]:
        if language == "python" and "grpc" not in code:
            names = {}
            exec(code, names)
            assert "signatures" in names or names["model"].count_params() == exported[1].count_params()
