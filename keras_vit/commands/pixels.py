"""Writes what a dense model predicts for each pixel of image files."""

import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_vit import files, terminal
from keras_vit.commands.image_files import decoded, find_images, names_and_decoder
from keras_vit.data.sources.listing import printable
from keras_vit.data.targets.masks import overlay
from keras_vit.evaluation.dense import picture_of, predict_pixels
from keras_vit.export.dense_signatures import predicts_of
from keras_vit.plots import to_uint8


def write_pixels(model, details, sources, output, windows=False, top=5):
    """Predicts the pixels of images and writes them below the folder `output`.

    Class numbers are gray PNG files in `masks`, with overlays in `overlays`. Depths are float32
    `.npy` files in `depths`, with pictures in `pictures`. Names of files and subfolders are kept.
    Prints the `top` largest classes of each image, or the range of its depths. Returns the number
    of files that cannot be read.
    """
    _, decoder = names_and_decoder(model, details)
    unreadable = 0
    for path, name in output_names(sources).items():
        try:
            image = decoded(decoder.decode, printable(path), path.read_bytes())
        except (OSError, ValueError) as error:
            terminal.write(error, sys.stderr)
            unreadable += 1
            continue
        picture, outputs = predict_image(model, image, decoder.preprocessing, windows)
        if predicts_of(model) == "depth":
            text = _write_depths(output, name, outputs[..., 0])
        else:
            text = _write_masks(output, name, outputs, picture, details.get("class_names"), top)
        terminal.write(f"{printable(path)}  {text}")
    return unreadable


def predict_image(model, image, preprocessing, windows=False):
    """Returns the picture of a decoded image, float32 `(H, W, 3)` in [0, 1], and the outputs of the
    model for its pixels."""
    picture = picture_of(image, 2**preprocessing.bit_depth - 1)
    return picture, predict_pixels(model, image, preprocessing, windows)


def output_names(sources):
    """Returns `{path: name}` of all images; a name is the path without ending, relative to the
    source.

    Raises:
        ValueError: two images would have the same name.
    """
    paths = {}
    for source in map(Path, sources):
        for path in find_images([source]):
            inside = path.relative_to(source) if source.is_dir() else Path(path.name)
            name = str(inside.with_suffix(""))
            if paths.setdefault(name, path) != path:
                raise ValueError(
                    "Images must have different names without their endings, because the masks get "
                    "these names; predict one folder at a time. Received: "
                    f"{printable(name)} twice"
                )
    return {path: name for name, path in paths.items()}


def _write_masks(output, name, outputs, picture, class_names, top):
    classes = outputs.argmax(-1)
    number = outputs.shape[-1]
    _write_png(output, f"masks/{name}.png", classes[..., None])
    drawn = to_uint8(overlay(picture, classes, number))
    _write_png(output, f"overlays/{name}.png", drawn)
    shares = np.bincount(classes.ravel(), minlength=number) / classes.size
    names = class_names or range(number)
    best = [i for i in np.argsort(-shares, kind="stable")[:top] if shares[i] > 0]
    return ", ".join(f"{names[i]} {100 * shares[i]:.1f} %" for i in best)


def _write_depths(output, name, depths):
    with _new_file(output, f"depths/{name}.npy") as file:
        np.save(file, depths.astype("float32"))
    gray, text = scaled(depths)
    _write_png(output, f"pictures/{name}.png", to_uint8(gray)[..., None])
    return text


def scaled(depths):
    """Scales depths to [0, 1]; returns them, and their range as a text."""
    low = float(depths.min())
    high = float(depths.max())
    return (depths - low) / max(high - low, 1e-12), f"{low:.4g} to {high:.4g}"


def _write_png(output, name, pixels):
    with _new_file(output, name) as file:
        file.write(tf.io.encode_png(np.asarray(pixels, "uint8")).numpy())


def _new_file(output, name):
    """Returns a context manager of a file to write in the folder `output`; creates its folder."""
    path = files.as_path(output) / name
    files.make_dirs(os.path.dirname(path))
    return files.atomic_write(path, "wb")
