"""Tests of Predict requests over gRPC with the messages in `export.messages`."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.export import messages

from . import malformed

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")


def _predict(port, signature="tensor", **inputs):
    """Sends a Predict request and returns a dict of the output arrays."""
    request = messages.PredictRequest()
    request.model_spec.name = "golden"
    request.model_spec.signature_name = signature
    for input_name, values in inputs.items():
        request.inputs[input_name].CopyFrom(tf.make_tensor_proto(values))
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        predict = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=messages.PredictRequest.SerializeToString,
            response_deserializer=messages.PredictResponse.FromString,
        )
        response = predict(request, timeout=60)
    return {output: tf.make_ndarray(tensor) for output, tensor in response.outputs.items()}


def test_tensors_match_jax_reference(grpc_port, served):
    outputs = _predict(grpc_port, images=served.images)
    np.testing.assert_allclose(outputs["probabilities"], served.expected, atol=1e-4)


def test_files_match_model(grpc_port, served):
    files = [malformed.PNG, malformed.GIF]
    outputs = _predict(grpc_port, signature="", image_bytes=files)
    expected = served.probabilities_of_files(files)
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)
    best = [names[0].decode() for names in outputs["top_classes"]]
    assert best == [served.class_names[i] for i in expected.argmax(-1)]


@pytest.mark.parametrize(
    ("signature", "inputs"),
    [
        ("tensor", {"images": np.zeros((1, 2), "float32")}),
        ("tensor", {"images": np.zeros((1, 64, 64, 3))}),
        ("serving_default", {"image_bytes": [b"no image"]}),
    ],
    ids=["rank", "float64", "bytes"],
)
def test_bad_input_is_an_invalid_argument(signature, inputs, grpc_port):
    with pytest.raises(grpc.RpcError) as error:
        _predict(grpc_port, signature, **inputs)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
