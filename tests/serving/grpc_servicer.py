"""A minimal gRPC server with TensorFlow Serving's Predict method for one export."""

import functools
from concurrent import futures

import grpc
import tensorflow as tf

from keras_vit.export import messages


def predict(loaded, request, context):
    """Runs a signature of a loaded SavedModel."""
    signature = loaded.signatures[request.model_spec.signature_name]
    try:
        inputs = {
            name: tf.constant(tf.make_ndarray(tensor)) for name, tensor in request.inputs.items()
        }
        outputs = signature(**inputs)
    except (tf.errors.OpError, TypeError, ValueError) as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:500])
    response = messages.PredictResponse()
    for name, tensor in outputs.items():
        response.outputs[name].CopyFrom(tf.make_tensor_proto(tensor))
    return response


def start(folder):
    """Starts a server on a free port and returns `(server, port)`."""
    loaded = tf.saved_model.load(folder)
    server = grpc.server(
        futures.ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", -1)]
    )
    handler = grpc.unary_unary_rpc_method_handler(
        functools.partial(predict, loaded),
        request_deserializer=messages.PredictRequest.FromString,
        response_serializer=messages.PredictResponse.SerializeToString,
    )
    service = "tensorflow.serving.PredictionService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Predict": handler}),)
    )
    port = server.add_insecure_port("localhost:0")
    server.start()
    return server, port
