"""A SavedModel of a model on another backend: a child process with the TensorFlow backend writes it.

The graph is the one that TensorFlow gives. What Keras itself exports from JAX is compiled again for every batch size.
"""

import json
import os
import tempfile

import keras
import numpy as np

from keras_vit import files
from keras_vit.export.inference_copy import uses_reduced_precision

# What the outputs of two backends may differ by in float32, relative to the largest, with a margin.
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
    """As `keras_vit.export.saved_model`, from any backend; the arguments were checked.

    Args:
        model: a `keras.Model` whose layers are Keras' and this library's, so that another process can load it.
        base_dir: any path of `tf.io.gfile`.
        options: its keyword arguments, a dict.

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
            json.dump([base_dir if files.is_remote(base_dir) else os.path.abspath(base_dir), options], file)
        tolerance = 5e-2 if uses_reduced_precision(model) else _TOLERANCE
        try:
            return files.run_python(
                ["-c", _CODE, folder, tolerance], KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="2"
            )
        except ChildProcessError as error:
            raise ValueError(
                f"The process with the TensorFlow backend could not export the model: {error} "
                f"Received: backend={keras.backend.backend()!r}"
            ) from error
