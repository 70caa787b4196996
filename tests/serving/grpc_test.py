"""Tests of Predict requests over gRPC with the messages in `export.messages`."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.export import messages

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")


def _call(port, service, method, request, response_name):
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        return channel.unary_unary(
            f"/tensorflow.serving.{service}/{method}",
            request_serializer=lambda x: x.SerializeToString(),
            response_deserializer=getattr(messages, response_name).FromString,
        )(request, timeout=60)


def _predict(port, name="golden", signature="tensor", **inputs):
    request = messages.PredictRequest()
    request.model_spec.name = name
    request.model_spec.signature_name = signature
    for input_name, values in inputs.items():
        request.inputs[input_name].CopyFrom(tf.make_tensor_proto(values))
    response = _call(port, "PredictionService", "Predict", request, "PredictResponse")
    assert response.model_spec.version.value == 1
    return {output: tf.make_ndarray(tensor) for output, tensor in response.outputs.items()}


def test_tensors_match_jax_reference(grpc_port, served):
    np.testing.assert_allclose(
        _predict(grpc_port, images=served.images)["probabilities"], served.expected, atol=1e-4
    )


def test_files_match_model(grpc_port, served, malformed):
    outputs = _predict(grpc_port, signature="", image_bytes=[malformed.PNG, malformed.GIF])
    expected = served.of_files([malformed.PNG, malformed.GIF])
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)
    assert [row[0].decode() for row in outputs["top_classes"]] == [
        served.class_names[i] for i in expected.argmax(-1)
    ]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"name": "silver"}, "NOT_FOUND"),
        ({"signature": "features"}, "INVALID_ARGUMENT"),
        ({"images": np.zeros((1, 2), "float32")}, "INVALID_ARGUMENT"),
        ({"images": np.zeros((1, 64, 64, 3), "float64")}, "INVALID_ARGUMENT"),
        ({"signature": "serving_default", "image_bytes": [b"no image"]}, "INVALID_ARGUMENT"),
    ],
    ids=["name", "signature", "rank", "dtype", "bytes"],
)
def test_bad_request_gets_grpc_status_code(changes, code, grpc_port):
    inputs = {} if "image_bytes" in changes else {"images": np.zeros((1, 64, 64, 3), "float32")}
    with pytest.raises(grpc.RpcError) as error:
        _predict(grpc_port, **{**inputs, **changes})
    assert error.value.code() == grpc.StatusCode[code]
