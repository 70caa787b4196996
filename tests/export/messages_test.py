"""Tests that our definitions of TensorFlow Serving's messages are compatible with
`tensorflow-serving-api`."""

import importlib

import pytest

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
