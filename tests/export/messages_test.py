"""Tests that our definitions of TensorFlow Serving's messages are compatible with
`tensorflow-serving-api`."""

import pytest
from google.protobuf import descriptor_pool

from keras_vit.export import messages

# This module and those that it imports register all messages of the API.
pytest.importorskip(
    "tensorflow_serving.apis.prediction_log_pb2",
    reason="tensorflow-serving-api is not installed (pip install --no-deps tensorflow-serving-api)",
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
    api = descriptor_pool.Default().FindMessageTypeByName(f"tensorflow.serving.{name}")
    assert ours.fields
    for field in ours.fields:
        assert description_of(field) == description_of(api.fields_by_number[field.number])
