"""The files of a version that are not its graph, as a server and its user read them."""

import re
from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2

from keras_vit import export
from keras_vit.export import messages
from keras_vit.export.assets import write_server_files

from .conftest import NAMES

STUBS = "tensorflow-serving-api is not installed (pip install --no-deps tensorflow-serving-api)"


def test_the_labels_are_one_a_line(exported):
    assert Path(exported[0], "assets/labels.txt").read_text(encoding="utf-8").splitlines() == list(NAMES)


def test_the_warm_up_runs_every_signature(exported):
    signatures = tf.saved_model.load(exported[0]).signatures
    names = []
    for record in tf.data.TFRecordDataset(f"{exported[0]}/assets.extra/tf_serving_warmup_requests"):
        request = messages.PredictionLog.FromString(record.numpy()).predict_log.request
        assert request.model_spec.name == "animals"
        inputs = {name: tf.constant(tf.make_ndarray(tensor)) for name, tensor in request.inputs.items()}
        outputs = signatures[request.model_spec.signature_name](**inputs)
        assert all(tensor.shape[0] == 1 for tensor in outputs.values())
        names.append(request.model_spec.signature_name)
    assert names == list(export.SIGNATURES)


def test_serving_reads_the_warm_up(exported):
    pytest.importorskip("tensorflow_serving.apis", reason=STUBS)
    from tensorflow_serving.apis import prediction_log_pb2

    records = tf.data.TFRecordDataset(f"{exported[0]}/assets.extra/tf_serving_warmup_requests")
    logs = [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]
    assert [log.WhichOneof("log_type") for log in logs] == ["predict_log"] * len(export.SIGNATURES)


def test_serving_reads_which_models_there_are(exported):
    pytest.importorskip("tensorflow_serving.config", reason=STUBS)
    from tensorflow_serving.config import model_server_config_pb2

    text = Path(exported[0], "assets.extra/models.config").read_text()
    (model,) = text_format.Parse(text, model_server_config_pb2.ModelServerConfig()).model_config_list.config
    assert (model.name, model.base_path, model.model_platform) == ("animals", "/models/animals", "tensorflow")


# `tensorflow-serving-api` does not have these two messages: their documented fields, described here.
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
    ("max_batch_size", "sizes"), [(512, [1, 2, 4, 8, 16, 32]), (7, [1, 2, 4, 7]), (1, [1]), (32, [1, 2, 4, 8, 16, 32])]
)
def test_the_files_for_the_server_are_text_protos(max_batch_size, sizes, tmp_path):
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(text_format.Parse(CONFIGS, descriptor_pb2.FileDescriptorProto()))
    new = lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"configs.{name}"))()  # noqa: E731
    write_server_files(tmp_path, "animals", max_batch_size)
    batching = text_format.Parse((tmp_path / "batching.config").read_text(), new("Batching"))
    assert list(batching.allowed_batch_sizes) == sizes and batching.max_batch_size.value == sizes[-1]
    monitoring = text_format.Parse((tmp_path / "monitoring.config").read_text(), new("Monitoring"))
    assert monitoring.prometheus_config.enable and monitoring.prometheus_config.path.startswith("/")


def test_the_python_lines_of_the_readme_run(exported, monkeypatch):
    text = Path(exported[0], "README.md").read_text(encoding="utf-8")
    blocks = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "grpc" not in code]
    assert len(blocks) == 2
    monkeypatch.chdir(exported[0])
    for code in blocks:
        names = {}
        exec(code, names)
        assert "signatures" in names or names["model"].count_params() == exported[1].count_params()
