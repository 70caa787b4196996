"""The description of an export: `model_card.json` for programs, `README.md` for people."""

import importlib.metadata
import json
import os
import platform

import keras
import tensorflow as tf

from keras_vit.checkpoints import names, registry
from keras_vit.export.assets import example_path

_ELSEWHERE = ("include_top", "input_shape")  # of the arguments
CARD = "assets.extra/model_card.json"
README = "README.md"

_README = """\
# {name}

{description}.

- {parameters:,} parameters, images of {height} x {width} pixels, {classes} classes, computed in {precision}
- `assets/labels.txt`: the name of each class; `assets.extra/model_card.json`: everything else

The lines below are for this folder; `cd` into it first.

## Serve

```sh
docker run --rm -p 8500:8500 -p 8501:8501 -v "$(dirname "$PWD")":/models/{name} tensorflow/serving \\
    --model_config_file=/models/{name}/$(basename "$PWD")/assets.extra/models.config \\
    --monitoring_config_file=/models/{name}/$(basename "$PWD")/assets.extra/monitoring.config
```

To merge requests of many clients into batches add `--enable_batching` and
`--batching_parameters_file=/models/{name}/$(basename "$PWD")/assets.extra/batching.config`; a bad request then fails
the requests that it was merged with, too. A request holds 1 to {max_batch_size} images.

## Signatures

{signatures}
{rest}{grpc}
## Without a server

```python
import tensorflow as tf

signatures = tf.saved_model.load(".").signatures
```

```python
from keras_vit import export

model = export.load(".")  # a keras.Model that can be trained further
```
"""
_REST = """
## REST

```sh
curl -sS http://localhost:8501/v1/models/{name}
```

```sh
(printf '{{"instances": [{{"b64": "'; base64 < {example} | tr -d '\\n'; printf '"}}]}}') |
    curl -sS -d @- http://localhost:8501/v1/models/{name}:predict
```
"""
_GRPC = """
## gRPC

```python
import grpc
import tensorflow as tf
from keras_vit.export import messages

request = messages.PredictRequest()
request.model_spec.name = "{name}"
with open("{example}", "rb") as file:
    request.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto([file.read()]))
with grpc.insecure_channel("localhost:8500") as channel:
    predict = channel.unary_unary(
        "/tensorflow.serving.PredictionService/Predict",
        request_serializer=messages.PredictRequest.SerializeToString,
        response_deserializer=messages.PredictResponse.FromString,
    )
    response = predict(request, timeout=60)
print(tf.make_ndarray(response.outputs["top_classes"]), tf.make_ndarray(response.outputs["top_probabilities"]))
```
"""


def model_card(model, **details):
    """The card of a model, which JSON can hold.

    Args:
        model: a built model.
        **details: further entries of the card.

    Returns:
        A dict with "model", "architecture", the details and "versions".
    """
    family, arguments = registry.infer(names.canonical_shapes(model), {})
    return {
        "model": model.name,
        "architecture": {
            "description": registry.describe(family, arguments),
            "parameters": model.count_params(),
            "image_shape": list(model.input_shape[1:]),
            **{key: value for key, value in arguments.items() if value is not None and key not in _ELSEWHERE},
        },
        **details,
        "versions": {
            "keras_vit": _version("keras_vit"),
            "keras": keras.version(),
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
    }


def write_card(folder, card):
    """Writes a card into the folder of a version."""
    # A path of the recipe may have bytes that are not UTF-8, which this writes as JSON has them.
    with open(os.path.join(folder, CARD), "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(card, file, indent=2, ensure_ascii=False)
        file.write("\n")


def write_readme(folder, name, card, signatures):
    """Writes the README of a version: how to serve it and how to query it.

    Args:
        folder: the folder of the version.
        name: the name of the model on the server.
        card: its `model_card`.
        signatures: `{name: Signature}`.
    """
    lines = [
        f"- `{signature_name}`: `{signature.spec.name}`, {signature.spec.dtype.name} "
        f"({', '.join('B' if side is None else str(side) for side in signature.spec.shape)})"
        for signature_name, signature in signatures.items()
    ]
    height, width, channels = card["architecture"]["image_shape"]
    example = example_path(channels)
    description = card["architecture"]["description"]
    takes_files = "serving_default" in signatures
    text = _README.format(
        name=name,
        description=description[0].upper() + description[1:],
        parameters=card["architecture"]["parameters"],
        height=height,
        width=width,
        classes=len(card["class_names"]),
        precision=card["precision"],
        max_batch_size=card["max_batch_size"],
        signatures="\n".join(lines),
        rest=_REST.format(name=name, example=example) if takes_files else "",
        grpc=_GRPC.format(name=name, example=example) if takes_files else "",
    )
    with open(os.path.join(folder, README), "w", encoding="utf-8") as file:
        file.write(text)


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
