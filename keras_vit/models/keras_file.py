"""Models from the files that Keras saves."""

import os

import keras


def load_keras_file(path: str | os.PathLike, compile: bool = True) -> keras.Model:
    """The model of a local .keras file, which is data alone: code in it is never run.

    Args:
        path: the file.
        compile: whether a compiled model gets its optimizer, loss and metrics back.

    Raises:
        ValueError: there is no such file, it is damaged, or it holds code.
    """
    try:
        return keras.saving.load_model(path, compile=compile, safe_mode=True)
    except Exception as error:  # of zipfile, json, h5py or Keras, as the damage is
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            "The file must hold a model that Keras saved, complete and without code of its own, of layers of Keras and "
            f"keras_vit ({reason}). Received: {path}"
        ) from error
