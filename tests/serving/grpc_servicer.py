"""A minimal server of TensorFlow Serving's gRPC services for one export."""

from concurrent import futures
from pathlib import Path

import grpc
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit.export import messages


class Servicer:
    """The methods of the services, for one version of one model.

    Args:
        folder: the folder of the version.
        name: the name of the model.
        version: the number of the version.
    """

    def __init__(self, folder, name, version):
        self.loaded, self.name, self.version = tf.saved_model.load(folder), name, version
        graph = saved_model_pb2.SavedModel.FromString(Path(folder, "saved_model.pb").read_bytes())
        self.signature_defs = graph.meta_graphs[0].signature_def

    def predict(self, request, context):
        spec = self._spec(request, context)
        name = spec.signature_name or "serving_default"
        if name not in self.loaded.signatures:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f'Serving signature name: "{name}" not found')
        try:
            inputs = {name: tf.constant(tf.make_ndarray(tensor)) for name, tensor in request.inputs.items()}
            outputs = self.loaded.signatures[name](**inputs)
        except (tf.errors.OpError, TypeError, ValueError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:500])
        response = messages.PredictResponse(model_spec=spec)
        for output, tensor in outputs.items():
            response.outputs[output].CopyFrom(tf.make_tensor_proto(tensor))
        return response

    def metadata(self, request, context):
        response = messages.GetModelMetadataResponse(model_spec=self._spec(request, context))
        signatures = messages.SignatureDefMap()
        for name, signature in self.signature_defs.items():
            signatures.signature_def[name].CopyFrom(signature)
        response.metadata["signature_def"].Pack(signatures)
        return response

    def status(self, request, context):
        self._spec(request, context)
        response = messages.GetModelStatusResponse()
        response.model_version_status.add(version=self.version, state=messages.STATES["AVAILABLE"])
        return response

    def _spec(self, request, context):
        """The request's model spec, with the version that is served."""
        spec = request.model_spec
        if spec.name != self.name or spec.version.value not in (0, self.version):
            context.abort(grpc.StatusCode.NOT_FOUND, f"Servable not found for request: {spec.name}")
        spec.version.value = self.version
        return spec


def start(folder, name, version):
    """Starts a server on a free port; returns `(server, port)`."""
    servicer = Servicer(folder, name, version)
    services = {
        "PredictionService": {
            "Predict": (servicer.predict, messages.PredictRequest),
            "GetModelMetadata": (servicer.metadata, messages.GetModelMetadataRequest),
        },
        "ModelService": {"GetModelStatus": (servicer.status, messages.GetModelStatusRequest)},
    }
    server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", -1)])
    for service, methods in services.items():
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(
                function, request_deserializer=request.FromString, response_serializer=lambda x: x.SerializeToString()
            )
            for method, (function, request) in methods.items()
        }
        handler = grpc.method_handlers_generic_handler(f"tensorflow.serving.{service}", handlers)
        server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("localhost:0")
    server.start()
    return server, port
