"""A SavedModel of a model of another backend: a process with the TensorFlow backend writes it.

Its graph is the same as one from TensorFlow. What Keras itself exports from JAX is compiled anew for every batch size.
"""

import json
import os
import subprocess
import sys
import tempfile

import keras
import numpy as np

from keras_vit.export.plain_copy import is_reduced

# A probability of one backend differs from that of another by no more in float32, with a margin.
_TOLERANCE = 1e-4

_CODE = """
import json, sys
import keras, numpy as np
import keras_vit
with open(f"{sys.argv[1]}/options.json", encoding="utf-8") as file:
    base_dir, options = json.load(file)
model = keras.saving.load_model(f"{sys.argv[1]}/model.keras", compile=False)
images, expected = (np.load(f"{sys.argv[1]}/{name}.npy", allow_pickle=False) for name in ("images", "outputs"))
difference = float(np.abs(keras.ops.convert_to_numpy(keras.ops.cast(model(images), "float32")) - expected).max())
tolerance = float(sys.argv[2]) * max(1.0, float(np.abs(expected).max()))
if not difference <= tolerance:
    raise ValueError(f"The outputs differ between the backends by {difference:g}, more than {tolerance:g}.")
print(keras_vit.export.saved_model(model, base_dir, **options))
"""


def saved_model(model, base_dir, options):
    """As `keras_vit.export.saved_model`, from any backend; the arguments checked.

    Args:
        model: a `keras.Model` whose layers another process finds: Keras' and this library's.
        base_dir: any path of `tf.io.gfile`.
        options: the keyword arguments.

    Returns:
        The path that was written.

    Raises:
        ValueError: the other process cannot load or export the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        images = np.random.default_rng(0).uniform(-1, 1, (2, *model.input_shape[1:])).astype("float32")
        np.save(f"{folder}/images.npy", images)
        outputs = keras.ops.cast(model(images, training=False), "float32")
        np.save(f"{folder}/outputs.npy", keras.ops.convert_to_numpy(outputs))
        with open(f"{folder}/options.json", "w", encoding="utf-8") as file:
            json.dump([os.path.abspath(base_dir) if "://" not in base_dir else base_dir, options], file)
        done = subprocess.run(
            [sys.executable, "-c", _CODE, folder, str(5e-2 if is_reduced(model) else _TOLERANCE)],
            env={**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
        raise ValueError(
            f"The process with the TensorFlow backend could not export the model: {said[0]} "
            f"Received: backend={keras.backend.backend()!r}"
        )
    return done.stdout.strip().splitlines()[-1]


def require_tensorflow(what):
    """Raises a `ValueError` unless Keras runs on TensorFlow, which `what` is made of."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"{what} is made of a TensorFlow graph: save the model as .keras and export it with "
            f"KERAS_BACKEND=tensorflow. Received: backend={keras.backend.backend()!r}"
        )
