"""The files of a version next to its graph, for the server and for the user of the model."""

import importlib.metadata
import json
import os
import platform

import keras
import tensorflow as tf

from keras_vit.checkpoints import names, registry
from keras_vit.export import messages
from keras_vit.export.versions import CARD, MODEL

LABELS = "assets/labels.txt"
_ELSEWHERE = ("include_top", "input_shape")  # arguments that the card has under other names
_WARMUP = "assets.extra/tf_serving_warmup_requests"  # where TensorFlow Serving looks for it

_README = """\
# {name}

{description}.

- {parameters:,} parameters, images of {height} x {width} pixels, {classes} classes, computed in {precision}
- `assets/labels.txt`: the name of each class; `assets.extra/model_card.json`: everything else

The lines below are for this folder; `cd` into it first.

## Serve

```sh
docker run --rm -p 8500:8500 -p 8501:8501 -v "$(dirname "$PWD")":/models/{name} -e MODEL_NAME={name} tensorflow/serving
```

A request holds 1 to {max_batch_size} images.

## Signatures

{signatures}
{rest}
## Without a server

```python
from keras_vit import export

model = export.load(".")  # a keras.Model that can be trained further
```
{predict}"""
_PREDICT = """
`keras-vit predict --model=. IMAGES...` prints the classes of image files. Without keras_vit:

```python
import tensorflow as tf

signatures = tf.saved_model.load(".").signatures
image_files = tf.io.read_file("{example}")[tf.newaxis]
predictions = signatures["serving_default"](image_bytes=image_files)
for name, probability in zip(predictions["top_classes"][0].numpy(), predictions["top_probabilities"][0].numpy()):
    print(name.decode(), probability)
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

The requests and responses of gRPC are in `keras_vit.export.messages`.
"""


def write_assets(folder, *, name, model, card, signatures, image_files):
    """Writes the labels, an example image, the `.keras` file, the warm-up and the README."""
    for part in ("assets", "assets.extra"):
        os.makedirs(os.path.join(folder, part), exist_ok=True)
    _write_text(folder, LABELS, "\n".join(card["class_names"]) + "\n")
    with open(os.path.join(folder, _example_path(model.input_shape[-1])), "wb") as file:
        file.write(image_files[0])
    model.save(os.path.join(folder, MODEL))
    _write_warmup(folder, name, signatures, image_files[:1])
    _write_readme(folder, name, card, signatures)


def _example_path(channels):
    return f"assets.extra/example.{'png' if channels in (2, 4) else 'jpg'}"  # JPEG has 1 or 3 channels


def _write_warmup(folder, name, signatures, image_files):
    """Writes a request for every signature, which a server runs before it is ready; a graph's first run is slow."""
    with tf.io.TFRecordWriter(os.path.join(folder, _WARMUP)) as file:
        for signature_name, signature in signatures.items():
            log = messages.PredictionLog()
            request = log.predict_log.request
            request.model_spec.name = name
            request.model_spec.signature_name = signature_name
            tensor = signature.example_inputs(image_files)
            request.inputs[signature.spec.name].CopyFrom(tf.make_tensor_proto(tensor))
            file.write(log.SerializeToString())


def model_card(model, **details):
    """Returns the card of a model, a dict that JSON can hold: "model", "architecture", the details and "versions"."""
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
    _write_text(folder, CARD, json.dumps(card, indent=2, ensure_ascii=False) + "\n", errors="backslashreplace")


def _write_readme(folder, name, card, signatures):
    lines = [
        f"- `{signature_name}`: `{signature.spec.name}`, {signature.spec.dtype.name} "
        f"({', '.join('B' if side is None else str(side) for side in signature.spec.shape)})"
        for signature_name, signature in signatures.items()
    ]
    height, width, channels = card["architecture"]["image_shape"]
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
        rest=_REST.format(name=name, example=_example_path(channels)) if takes_files else "",
        predict=_PREDICT.format(example=_example_path(channels)) if takes_files else "",
    )
    _write_text(folder, "README.md", text)


def _write_text(folder, name, text, errors="strict"):
    with open(os.path.join(folder, name), "w", encoding="utf-8", errors=errors) as file:
        file.write(text)


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
