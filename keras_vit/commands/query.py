"""Sends images to an exported model on TensorFlow Serving, or on another server with the same API.

    keras-vit query --model=digits cat.jpg dog.png
    keras-vit query --model=digits --protocol=grpc --host=10.0.0.2 cat.jpg
    keras-vit query --model=digits --signature=tensor images.npy

The command prints the top classes for each image. The server decodes image files. The signature
`tensor` takes preprocessed images instead, float32 (B, H, W, C) in one .npy file.
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
    flags.DEFINE_string("host", "localhost", "Name or address of the server.")
    flags.DEFINE_integer(
        "port", None, "Port; by default, TensorFlow Serving's 8501 (rest) or 8500 (grpc).", 1, 65535
    )
    flags.DEFINE_enum("protocol", "rest", ["rest", "grpc"], "Protocol of the request.")
    flags.DEFINE_string("model", "model", "Name of the model on the server.")
    flags.DEFINE_enum(
        "signature", "serving_default", ["serving_default", "tensor"], "Signature to call."
    )
    flags.DEFINE_integer(
        "top",
        3,
        "Number of classes to print per image, best first; at most --top of the export.",
        lower_bound=1,
    )
    flags.DEFINE_float("timeout", 60, "Seconds to wait for the response.", lower_bound=0.001)


def main(*paths):
    names, inputs = read_inputs(paths)
    port, predict = {"rest": (8501, predict_rest), "grpc": (8500, predict_grpc)}[FLAGS.protocol]
    outputs = predict(f"{FLAGS.host}:{FLAGS.port or port}", inputs)
    if np.ndim(outputs.get("probabilities", ())) != 2:
        raise ValueError(
            "keras-vit query prints classes; for masks and depths, send a request as in "
            f"docs/serving.md. Received: outputs {', '.join(outputs)} of {FLAGS.model!r}"
        )
    for i, name in enumerate(names):
        if "top_classes" in outputs:
            best = zip(outputs["top_classes"][i], outputs["top_probabilities"][i])
        else:
            probabilities = np.array(outputs["probabilities"][i])
            best = ((f"class {j}", probabilities[j]) for j in np.argsort(-probabilities))
        shown = [f"{label} {100 * probability:.1f} %" for label, probability in best]
        print(f"{name}: {', '.join(shown[: FLAGS.top])}")


def read_inputs(paths):
    """Returns the names of the images and the inputs of the request, `{name: array}`."""
    try:
        if FLAGS.signature == "serving_default":
            files = np.array([Path(path).read_bytes() for path in paths], dtype=object)
            return paths, {"image_bytes": files}
        if len(paths) == 1:
            images = np.load(paths[0], allow_pickle=False)
            if isinstance(images, np.ndarray) and images.ndim and images.dtype == np.float32:
                return [f"image {i}" for i in range(len(images))], {"images": images}
    except (OSError, ValueError) as error:
        raise ValueError(
            f"An image file cannot be read ({error}). Received: {' '.join(paths)}"
        ) from error
    raise ValueError(
        "IMAGES must be image files or, for the signature `tensor`, one float32 .npy file. "
        f"Received: {' '.join(paths)}"
    )


def predict_rest(address, inputs):
    """Sends a REST request; returns the outputs in column format, `{name: nested lists}`."""

    def encoded(array):
        if array.dtype != object:
            return array.tolist()
        return [{"b64": base64.b64encode(content).decode()} for content in array]

    body = {
        "signature_name": FLAGS.signature,
        "inputs": {name: encoded(array) for name, array in inputs.items()},
    }
    url = f"http://{address}/v1/models/{FLAGS.model}:predict"
    try:
        with urllib.request.urlopen(
            url, json.dumps(body).encode(), timeout=FLAGS.timeout
        ) as response:
            outputs = json.load(response)["outputs"]
    except urllib.error.HTTPError as error:
        message = error.read().decode(errors="replace")
        raise ValueError(
            f"The server rejected the request: {message[:500]} Received: HTTP {error.code} from "
            f"{url}"
        ) from error
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"The model server did not return predictions ({error}). Received: {url}"
        ) from error
    # The server omits the name of a single output.
    return outputs if isinstance(outputs, dict) else {"probabilities": outputs}


def predict_grpc(address, inputs):
    """Sends a gRPC request; returns the outputs, `{name: array}`."""
    try:
        import grpc
    except ImportError as error:
        raise ImportError(
            '--protocol=grpc requires grpcio: pip install "keras_vit[serving]"'
        ) from error
    import tensorflow as tf

    from keras_vit.export import messages

    request = messages.PredictRequest()
    request.model_spec.name = FLAGS.model
    request.model_spec.signature_name = FLAGS.signature
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    # By default, gRPC refuses responses of more than 4 MB, as for many images and 21,843 classes.
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address, options) as channel:
        call = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=messages.PredictRequest.SerializeToString,
            response_deserializer=messages.PredictResponse.FromString,
        )
        try:
            response = call(request, timeout=FLAGS.timeout)
        except grpc.RpcError as error:
            raise ValueError(
                f"The model server did not return predictions ({error.details()}). Received: "
                f"{error.code()} from {address}"
            ) from error
    outputs = {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}
    if "top_classes" in outputs:
        outputs["top_classes"] = np.char.decode(outputs["top_classes"].astype("S"), "utf-8")
    return outputs
