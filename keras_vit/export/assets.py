"""Writes the files next to the graph of an exported version, for servers and users."""

import platform
from pathlib import Path

import keras
import tensorflow as tf

import keras_vit
from keras_vit.checkpoints import architectures, names
from keras_vit.export import messages
from keras_vit.export.dense_signatures import predicts_of
from keras_vit.export.versions import MODEL
from keras_vit.models.any_model import takes_any_size

LABELS = "assets/labels.txt"
# Arguments that the card omits or stores as `image_shape`.
_ELSEWHERE = ("include_top", "input_shape")
_WARM_UP = "assets.extra/tf_serving_warmup_requests"  # the path that TensorFlow Serving expects

_README = """\
# {name}

{description}.

- {architecture[parameters]:,} parameters, computes in {card[precision]} in the form for the device "{card[device]}"
- {images}
{classes}- all other details in `assets.extra/model_card.json`

Run the commands below in this folder.

## Serve

```sh
docker run --rm -p 8500:8500 -p 8501:8501 -v "$(dirname "$PWD")":/models/{name} -e MODEL_NAME={name} tensorflow/serving
```

A request contains 1 to {card[max_batch_size]} images.

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
_PREDICT_PIXELS = """
`keras-vit predict --model=. --output=FOLDER IMAGES...` writes what the model predicts for each pixel. Without keras_vit:

```python
import tensorflow as tf

signatures = tf.saved_model.load(".").signatures
image_files = tf.io.read_file("{example}")[tf.newaxis]
predictions = signatures["serving_default"](image_bytes=image_files)
for name, pixels in predictions.items():
    print(name, pixels.shape)
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

gRPC requests and responses are defined in `keras_vit.export.messages`.
"""


def write_assets(folder, *, name, model, card, signatures, image_files):
    """Writes the labels, an example image, the `.keras` file, the warm-up requests and the
    README."""
    folder = Path(folder)
    is_jpeg = model.input_shape[-1] not in (2, 4)
    example = f"assets.extra/example.{'jpg' if is_jpeg else 'png'}"
    for part in ("assets", "assets.extra"):
        (folder / part).mkdir(exist_ok=True)
    labels = "".join(f"{name}\n" for name in card["class_names"])
    (folder / LABELS).write_text(labels, encoding="utf-8")
    (folder / example).write_bytes(image_files[0])
    model.save(folder / MODEL)
    _write_warm_up(folder / _WARM_UP, name, signatures, image_files[:1])
    (folder / "README.md").write_text(
        _readme(name, model, card, signatures, example), encoding="utf-8"
    )


def _write_warm_up(path, name, signatures, image_files):
    """Writes one request per signature; a server runs them at startup, because the first run of a
    graph is slow."""
    with tf.io.TFRecordWriter(str(path)) as file:
        for signature_name, signature in signatures.items():
            log = messages.PredictionLog()
            request = log.predict_log.request
            request.model_spec.name = name
            request.model_spec.signature_name = signature_name
            tensor = signature.example_inputs(image_files)
            request.inputs[signature.spec.name].CopyFrom(tf.make_tensor_proto(tensor))
            file.write(log.SerializeToString())


def model_card(model, **details):
    """Returns the card of a model, a JSON-serializable dict: its name, its architecture, the
    `details` and the versions of the libraries."""
    family, arguments = architectures.infer(names.canonical_shapes(model))
    return {
        "model": model.name,
        "architecture": {
            "description": architectures.describe(family, arguments),
            "parameters": model.count_params(),
            "image_shape": list(model.input_shape[1:]),
            **{
                key: value
                for key, value in arguments.items()
                if value is not None and key not in _ELSEWHERE
            },
        },
        **details,
        "versions": {
            "keras_vit": keras_vit.__version__,
            "keras": keras.version(),
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
    }


def image_size_text(model):
    """Returns a phrase with the size of the images that a model takes."""
    height, width, _ = model.input_shape[1:]
    if takes_any_size(model):  # one image is `(patches, values, channels)`
        return f"images of any size, as up to {height} patches"
    return f"images of {width} x {height} pixels"


def _readme(name, model, card, signatures, example):
    lines = [
        f"- `{signature_name}`: `{signature.spec.name}`, {signature.spec.dtype.name} "
        f"({', '.join('B' if side is None else str(side) for side in signature.spec.shape)})"
        for signature_name, signature in signatures.items()
    ]
    number = len(card["class_names"])
    description = card["architecture"]["description"]
    takes_files = "serving_default" in signatures
    predict = _PREDICT_PIXELS if predicts_of(model) else _PREDICT
    return _README.format(
        name=name,
        card=card,
        architecture=card["architecture"],
        images=image_size_text(model),
        description=description[0].upper() + description[1:],
        classes=f"- {number} classes, with names in `{LABELS}`\n" if number else "",
        signatures="\n".join(lines),
        rest=_REST.format(name=name, example=example) if takes_files else "",
        predict=predict.format(example=example) if takes_files else "",
    )
