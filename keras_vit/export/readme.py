"""The README of an export: how to serve it and how to ask it."""

import os

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
`--batching_parameters_file=/models/{name}/$(basename "$PWD")/assets.extra/batching.config`; one bad request then fails
those that it was merged with. A request holds 1 to {max_batch_size} images.

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
(printf '{{"instances": [{{"b64": "'; base64 < assets.extra/example.jpg | tr -d '\\n'; printf '"}}]}}') |
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
with open("assets.extra/example.jpg", "rb") as file:
    request.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto([file.read()]))
with grpc.insecure_channel("localhost:8500") as channel:
    predict = channel.unary_unary(
        "/tensorflow.serving.PredictionService/Predict",
        request_serializer=messages.PredictRequest.SerializeToString,
        response_deserializer=messages.PredictResponse.FromString,
    )
    answer = predict(request, timeout=60)
print(tf.make_ndarray(answer.outputs["top_classes"]), tf.make_ndarray(answer.outputs["top_probabilities"]))
```
"""


def write_readme(folder, name, card, signatures):
    """Writes `README.md`.

    Args:
        folder: of the version.
        name: of the model on the server.
        card: its `model_card`.
        signatures: `{name: Signature}`.
    """
    lines = [
        f"- `{signature}`: `{made.spec.name}`, {made.spec.dtype.name} "
        f"({', '.join('B' if side is None else str(side) for side in made.spec.shape)})"
        for signature, made in signatures.items()
    ]
    height, width, _ = card["architecture"]["image_shape"]
    text = _README.format(
        name=name,
        description=card["architecture"]["description"].replace("a Vision", "A Vision", 1),
        parameters=card["architecture"]["parameters"],
        height=height,
        width=width,
        classes=len(card["class_names"]),
        precision=card["precision"],
        max_batch_size=card["max_batch_size"],
        signatures="\n".join(lines),
        rest=_REST.format(name=name) if "serving_default" in signatures else "",
        grpc=_GRPC.format(name=name) if "serving_default" in signatures else "",
    )
    with open(os.path.join(folder, "README.md"), "w", encoding="utf-8") as file:
        file.write(text)
