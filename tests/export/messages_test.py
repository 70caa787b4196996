"""Tests that our definitions of TensorFlow Serving's messages are compatible with
`tensorflow-serving-api`."""

import importlib

import pytest
import tensorflow as tf

from keras_vit.export import messages

API_MODULES = {
    "ModelSpec": "model",
    "PredictLog": "prediction_log",
    "PredictionLog": "prediction_log",
    "PredictRequest": "predict",
    "PredictResponse": "predict",
}


def api_message(name):
    reason = (
        "tensorflow-serving-api is not installed (pip install --no-deps tensorflow-serving-api)"
    )
    pytest.importorskip("tensorflow_serving.apis", reason=reason)
    return getattr(
        importlib.import_module(f"tensorflow_serving.apis.{API_MODULES[name]}_pb2"), name
    )


def example_log():
    """Returns a `PredictionLog` with a value in every field of the request."""
    log = messages.PredictionLog()
    request = log.predict_log.request
    request.model_spec.name = "digits"
    request.model_spec.version.value = 3
    request.model_spec.signature_name = "tensor"
    request.inputs["images"].CopyFrom(tf.make_tensor_proto([[1.5, -2.0]]))
    request.output_filter.append("probabilities")
    return log


def test_api_modules_list_all_messages():
    assert API_MODULES.keys() == messages.MESSAGES.keys()


def description_of(field):
    """Returns the properties of a field that change how it is read or written."""
    message = field.message_type
    description = [field.name, field.number, field.type, field.is_repeated]
    if message:
        description += [message.name, message.GetOptions().map_entry]
        if message.GetOptions().map_entry:
            description += [description_of(message.fields_by_name[x]) for x in ("key", "value")]
    return description


@pytest.mark.parametrize("name", messages.MESSAGES)
def test_message_fields_match_api(name):
    ours = getattr(messages, name).DESCRIPTOR
    api = api_message(name).DESCRIPTOR
    assert ours.fields
    for field in ours.fields:
        assert description_of(field) == description_of(api.fields_by_number[field.number])


def test_bytes_round_trip_through_api():
    read = api_message("PredictionLog").FromString(example_log().SerializeToString())
    assert read.predict_log.request.model_spec.version.value == 3
    assert tf.make_ndarray(read.predict_log.request.inputs["images"]).tolist() == [[1.5, -2.0]]
    assert messages.PredictionLog.FromString(read.SerializeToString()) == example_log()


def test_tensor_round_trips():
    read = messages.PredictionLog.FromString(example_log().SerializeToString()).predict_log.request
    assert tf.make_ndarray(read.inputs["images"]).tolist() == [[1.5, -2.0]]
