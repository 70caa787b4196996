"""Sends images to a server of an exported model: TensorFlow Serving, or any server that speaks its protocols.

    keras-vit query --model=digits cat.jpg dog.png
    keras-vit query --model=digits --protocol=grpc --host=10.0.0.2 cat.jpg
    keras-vit query --model=digits --signature=tensor images.npy

It prints the best classes of each. Image files are sent as they are, and decoded by the server. The signature `tensor`
takes prepared images instead, float32 (B, H, W, C) in a .npy file.
"""

import base64
import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
from absl import flags

POSITIONAL = ("IMAGES...",)
FLAGS = flags.FLAGS


def define_flags():
    flags.DEFINE_string("host", "localhost", "The server's name or address.")
    flags.DEFINE_integer("port", None, "Its port; if not given TensorFlow Serving's, 8501 for rest and 8500 for grpc.")
    flags.DEFINE_enum("protocol", "rest", ["rest", "grpc"], "The server's protocol.")
    flags.DEFINE_string("model", "model", "The name that the server knows the model by.")
    flags.DEFINE_enum("signature", "serving_default", ["serving_default", "tensor"], "The signature to call.")
    flags.DEFINE_integer("top", 3, "How many classes to print of each image, best first.", lower_bound=1)
    flags.DEFINE_float("timeout", 60, "Seconds to wait for the response.", lower_bound=0.001)


def main(*paths):
    names, inputs = read_inputs(paths)
    port, predict = {"rest": (8501, predict_rest), "grpc": (8500, predict_grpc)}[FLAGS.protocol]
    outputs = predict(f"{FLAGS.host}:{FLAGS.port or port}", inputs)
    for i, name in enumerate(names):
        if "top_classes" in outputs:
            best = zip(outputs["top_classes"][i], outputs["top_probabilities"][i])
            best = [(x.decode() if isinstance(x, bytes) else x, p) for x, p in best][: FLAGS.top]
        else:
            probabilities = np.array(outputs["probabilities"][i])
            best = [(f"class {j}", probabilities[j]) for j in np.argsort(-probabilities)[: FLAGS.top]]
        print(f"{name}: " + ", ".join(f"{label} {100 * probability:.1f} %" for label, probability in best))


def read_inputs(paths):
    """Names of the images for the printed lines, and the input of the request as `{name: array}`."""
    try:
        if FLAGS.signature == "serving_default":
            files = np.array([Path(path).read_bytes() for path in paths], dtype=object)
            return paths, {"image_bytes": files}
        if FLAGS.signature == "tensor" and len(paths) == 1:
            images = np.load(paths[0], allow_pickle=False)
            if images.dtype == np.float32:
                return [f"image {i}" for i in range(len(images))], {"images": images}
    except (OSError, ValueError) as error:
        raise ValueError(f"an image file cannot be read ({error}). Received: {' '.join(paths)}") from error
    raise ValueError(
        "IMAGES must be image files, or for the signature `tensor` one .npy file of float32. "
        f"Received: {' '.join(paths)}"
    )


def predict_rest(address, inputs):
    """The outputs of a request over REST, in columns: `{name: nested lists}`."""

    def encoded(array):
        return array.tolist() if array.dtype != object else [{"b64": base64.b64encode(x).decode()} for x in array]

    body = {"signature_name": FLAGS.signature, "inputs": {name: encoded(array) for name, array in inputs.items()}}
    url = f"http://{address}/v1/models/{FLAGS.model}:predict"
    try:
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=FLAGS.timeout) as response:
            outputs = json.load(response)["outputs"]
    except urllib.error.HTTPError as error:
        message = error.read().decode(errors="replace")
        raise ValueError(f"the server refused: {message[:500]} Received: HTTP {error.code} from {url}") from error
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        raise ValueError(f"no server of models answered ({error}). Received: {url}") from error
    # A single output comes without its name.
    return outputs if isinstance(outputs, dict) else {"probabilities": outputs}


def predict_grpc(address, inputs):
    """The outputs of a request over gRPC: `{name: array}`."""
    try:
        import grpc
    except ImportError as error:
        raise ImportError('--protocol=grpc needs grpcio: pip install "keras_vit[serving]"') from error
    import tensorflow as tf

    from keras_vit.export import messages

    request = messages.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = FLAGS.model, FLAGS.signature
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=messages.PredictRequest.SerializeToString,
            response_deserializer=messages.PredictResponse.FromString,
        )
        try:
            response = call(request, timeout=FLAGS.timeout)
        except grpc.RpcError as error:
            text = f"the server refused: {error.details()} Received: {error.code()} from {address}"
            raise ValueError(text) from error
    return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}
