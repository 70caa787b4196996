"""Our descriptions of TensorFlow Serving's messages: the same bytes as theirs."""

import importlib

import pytest
import tensorflow as tf

from keras_vit.export import messages

THEIRS = {
    "ClassificationRequest": "classification", "ClassificationResponse": "classification", "Class": "classification",
    "Classifications": "classification", "ClassificationResult": "classification", "ModelSpec": "model",
    "ClassifyLog": "prediction_log", "PredictLog": "prediction_log", "PredictionLog": "prediction_log",
    "ExampleList": "input", "Input": "input", "PredictRequest": "predict", "PredictResponse": "predict",
    "GetModelMetadataRequest": "get_model_metadata", "GetModelMetadataResponse": "get_model_metadata",
    "SignatureDefMap": "get_model_metadata", "GetModelStatusRequest": "get_model_status",
    "GetModelStatusResponse": "get_model_status", "ModelVersionStatus": "get_model_status", "StatusProto": "status",
}  # fmt: skip


def theirs(name):
    reason = "tensorflow-serving-api is not installed (pip install --no-deps tensorflow-serving-api)"
    pytest.importorskip("tensorflow_serving.apis", reason=reason)
    return getattr(importlib.import_module(f"tensorflow_serving.apis.{THEIRS[name]}_pb2"), name)


def filled():
    """A record with something in every field that a request has."""
    log = messages.PredictionLog()
    request = log.predict_log.request
    request.model_spec.name, request.model_spec.version.value = "digits", 3
    request.model_spec.signature_name = "tensor"
    request.inputs["images"].CopyFrom(tf.make_tensor_proto([[1.5, -2.0]]))
    request.output_filter.append("probabilities")
    return log


def test_every_message_is_compared():
    assert THEIRS.keys() == messages.MESSAGES.keys()


@pytest.mark.parametrize("name", messages.MESSAGES)
def test_a_message_has_the_fields_of_the_stubs(name):
    ours, real = getattr(messages, name).DESCRIPTOR, theirs(name).DESCRIPTOR
    assert ours.fields
    for field in ours.fields:
        other = real.fields_by_number[field.number]
        for part in ("name", "type", "is_repeated"):
            assert getattr(field, part) == getattr(other, part), (field.name, part)
        assert bool(field.containing_oneof) == bool(other.containing_oneof), field.name
        if field.enum_type:
            assert field.enum_type.values_by_name.keys() == other.enum_type.values_by_name.keys()
            for state, value in field.enum_type.values_by_name.items():
                assert value.number == other.enum_type.values_by_name[state].number
        if field.message_type:
            assert field.message_type.name == other.message_type.name
            assert field.message_type.GetOptions().map_entry == other.message_type.GetOptions().map_entry
            if field.message_type.GetOptions().map_entry:
                for part in ("key", "value"):
                    inner, outer = (f.message_type.fields_by_name[part] for f in (field, other))
                    assert (inner.number, inner.type) == (outer.number, outer.type)
                    assert getattr(inner.message_type, "name", "") == getattr(outer.message_type, "name", "")


def test_the_stubs_read_what_we_write_and_write_what_we_read():
    read = theirs("PredictionLog").FromString(filled().SerializeToString())
    assert read.predict_log.request.model_spec.version.value == 3
    assert tf.make_ndarray(read.predict_log.request.inputs["images"]).tolist() == [[1.5, -2.0]]
    assert messages.PredictionLog.FromString(read.SerializeToString()) == filled()


def test_tensors_are_tensorflows_own():
    read = messages.PredictionLog.FromString(filled().SerializeToString()).predict_log.request
    assert tf.make_ndarray(read.inputs["images"]).tolist() == [[1.5, -2.0]]
    assert filled().WhichOneof("log_type") == "predict_log"


def test_of_a_oneof_the_last_one_stays():
    spec = messages.ModelSpec(version_label="stable")
    spec.version.value = 2
    assert spec.WhichOneof("version_choice") == "version" and spec.version_label == ""
