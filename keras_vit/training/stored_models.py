"""Loads models from runs, exports, files and published weights."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from typing import Any

import keras

from keras_vit import checkpoints, export, families, files, terminal
from keras_vit.checkpoints import published
from keras_vit.models import TwoTowers, load_keras_file
from keras_vit.models.zero_shot import class_names_of
from keras_vit.training.loading import has_checkpoint, load_checkpoint

# The arguments that describe a model in the log.
_SIZES = ("patch_size", "num_layers", "hidden_size", "mlp_dim", "num_heads", "input_shape")


def load_stored_model(
    source: str | os.PathLike, write: Callable[[str], object] = terminal.write
) -> tuple[keras.Model, dict[str, Any]] | None:
    """Loads the newest export of a folder, or the checkpoint of a run that has no newer export.

    Args:
        source: the workdir of a run, the folder of an export, or the folder of its versions, local
            or remote.
        write: called with a line that names the checkpoint.

    Returns: `(model, details)`: the `keras.Model`, and a dict of arguments for
        `export.saved_model`; None if the folder contains neither a run nor an export.

    Raises:
        ValueError: a file is damaged, or the run has neither an export nor a checkpoint.
    """
    # Load an unfinished run, or a run without an export, from a checkpoint.
    folder = files.as_path(source)
    newest = export.newest_version(folder / "export")
    is_done = files.exists(folder / "results.json")  # written after the export
    is_exported = newest and (is_done or not has_checkpoint(folder))
    if files.exists(folder / "config.json") and not is_exported:
        why = "the run has no export"
        if newest:
            why = "the run is not finished, and its export may be older"
        run, config = load_checkpoint(folder, lambda line: write(f"{why}: {line}"))
        return run.model, {"class_names": run.inputs.test.class_names, "recipe": config.to_dict()}
    # Load an export from a run, a folder of versions, or a version.
    folder = files.as_path(newest or export.newest_version(folder) or folder)
    if not files.exists(folder / export.CARD):
        return None
    card = export.load_card(folder)
    details = {
        **{name: card[name] for name in ("class_names", "activation", "metrics")},
        **{name: card["preprocessing"][name] for name in ("rounding", "exif")},
        "recipe": card["training"],
    }
    return export.load(folder), details


def load_any_model(
    source: str, image_size: int = 0, write: Callable[[str], object] = terminal.write
) -> tuple[keras.Model, dict[str, Any]]:
    """Loads a model for another run.

    Args:
        source: as for `load_stored_model`; or the path of a .keras file; or a source of
            `keras_vit.from_pretrained`.
        image_size: height and width of the images of a model from `from_pretrained`; 0 for those
            of its file.
        write: as for `load_stored_model`.

    Returns: `(model, details)`, as in `load_stored_model`; `details` has "class_names" if they are
        known.

    Raises:
        ValueError: there is no such model, or `image_size` is set for another kind of source.
    """
    if not is_stored(source):
        size: dict[str, Any] = {"input_shape": (image_size, image_size, 3)} if image_size else {}
        model = families.from_pretrained(source, **size)
        names = checkpoints.find_class_names(source)
    elif image_size:
        raise ValueError(
            "The image size can be set only for published weights or a file of weights; other "
            f"models keep their own. Received: image_size={image_size}, model={source!r}"
        )
    elif files.is_dir(source):
        if stored := load_stored_model(source, write):
            return stored
        raise ValueError(
            f"The folder contains neither a run nor an export. Received: model={source!r}"
        )
    else:
        model = load_keras_file(source, compile=False)
        names = class_names_of(model)
    return model, {"class_names": names} if names else {}


def is_stored(source):
    """Returns whether a source is a .keras file, or a folder without weight files of timm or
    transformers, which may be a run or an export."""
    if not files.is_dir(source):
        return source.endswith(".keras")
    weights = (".safetensors", ".safetensors.index.json", ".bin")
    return not any(name.endswith(weights) for name in files.list_dir(source))


@contextlib.contextmanager
def as_initial_weights(source, facts, write):
    """Returns a context in which `checkpoints.load` accepts a run, an export or a .keras file.

    The context's value is `(model, class names)`, or None for other sources. Adds the
    preprocessing of the model to `facts`, a task's `facts_of_weights`.
    """
    if published.is_name(source) or not is_stored(source):
        yield None
        return
    model, details = load_any_model(source, write=write)
    arguments = getattr(model, "arguments", {})
    sizes = [f"{name}={arguments[name]}" for name in _SIZES if name in arguments]
    write(f"{source} is a {', '.join([type(model).__name__, *sizes])}")
    if hasattr(model, "preprocessing"):
        facts["preprocessing"] = model.preprocessing.to_config()
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(model, TwoTowers):
            path = folder
            checkpoints.save(model, path, format="huggingface")
        else:
            path = f"{folder}/weights.npz"
            checkpoints.save(model, path)
        with published.stand_in(source, path):
            yield model, details.get("class_names")
