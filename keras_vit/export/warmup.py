"""What a server asks itself before it says that it is ready: the first answer of a graph is its slowest."""

import os

import tensorflow as tf

from keras_vit.export import messages

FILE = "assets.extra/tf_serving_warmup_requests"  # where TensorFlow Serving looks for it


def write_warmup(folder, name, requests):
    """Writes a record for every signature.

    Args:
        folder: of the SavedModel; `assets.extra` is there.
        name: of the model on the server.
        requests: `{signature: (input name, tensor)}`.
    """
    with tf.io.TFRecordWriter(os.path.join(folder, FILE)) as file:
        for signature, (input_name, tensor) in requests.items():
            log = messages.PredictionLog()
            request = log.predict_log.request
            request.model_spec.name = name
            request.model_spec.signature_name = signature
            request.inputs[input_name].CopyFrom(tf.make_tensor_proto(tensor))
            file.write(log.SerializeToString())
