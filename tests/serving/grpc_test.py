"""Tests of Predict requests over gRPC with the messages in `export.messages`."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.export import messages

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")


def _predict(port, images):
    """Sends a Predict request for the signature `tensor` and returns the probabilities."""
    request = messages.PredictRequest()
    request.model_spec.name = "golden"
    request.model_spec.signature_name = "tensor"
    request.inputs["images"].CopyFrom(tf.make_tensor_proto(images))
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        predict = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=messages.PredictRequest.SerializeToString,
            response_deserializer=messages.PredictResponse.FromString,
        )
        response = predict(request, timeout=60)
    return tf.make_ndarray(response.outputs["probabilities"])


def test_tensors_match_jax_reference(grpc_port, served):
    probabilities = _predict(grpc_port, served.images)
    np.testing.assert_allclose(probabilities, served.expected, atol=1e-4)


@pytest.mark.parametrize(
    "images", [np.zeros((1, 2), "float32"), np.zeros((1, 64, 64, 3))], ids=["rank", "float64"]
)
def test_bad_input_is_an_invalid_argument(images, grpc_port):
    with pytest.raises(grpc.RpcError) as error:
        _predict(grpc_port, images)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
