"""A minimal gRPC server with TensorFlow Serving's Predict method for one export."""

from concurrent import futures

import grpc
import tensorflow as tf

from keras_vit.export import messages


class Servicer:
    """Implements Predict for one version of one model.

    Args:
        folder: folder of the version.
        name: name of the model.
        version: version number.
    """

    def __init__(self, folder, name, version):
        self.loaded = tf.saved_model.load(folder)
        self.name = name
        self.version = version

    def predict(self, request, context):
        spec = self._spec(request, context)
        name = spec.signature_name or "serving_default"
        if name not in self.loaded.signatures:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f'Serving signature name: "{name}" not found'
            )
        try:
            inputs = {
                name: tf.constant(tf.make_ndarray(tensor))
                for name, tensor in request.inputs.items()
            }
            outputs = self.loaded.signatures[name](**inputs)
        except (tf.errors.OpError, TypeError, ValueError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:500])
        response = messages.PredictResponse(model_spec=spec)
        for output, tensor in outputs.items():
            response.outputs[output].CopyFrom(tf.make_tensor_proto(tensor))
        return response

    def _spec(self, request, context):
        """Checks the model spec of a request and returns it with the served version."""
        spec = request.model_spec
        if spec.name != self.name or spec.version.value not in (0, self.version):
            context.abort(grpc.StatusCode.NOT_FOUND, f"Servable not found for request: {spec.name}")
        spec.version.value = self.version
        return spec


def start(folder, name, version):
    """Starts a server on a free port and returns `(server, port)`."""
    servicer = Servicer(folder, name, version)
    server = grpc.server(
        futures.ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", -1)]
    )
    handler = grpc.unary_unary_rpc_method_handler(
        servicer.predict,
        request_deserializer=messages.PredictRequest.FromString,
        response_serializer=lambda x: x.SerializeToString(),
    )
    service = "tensorflow.serving.PredictionService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Predict": handler}),)
    )
    port = server.add_insecure_port("localhost:0")
    server.start()
    return server, port
