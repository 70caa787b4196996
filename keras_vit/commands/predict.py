"""Predicts the classes of image files, or of their pixels.

    keras-vit predict --model=runs/photos new_photos
    keras-vit predict --model=served/photos cat.jpg "my dog.png" --top=3
    keras-vit predict --model=mine.keras --class_names=names.txt photos --csv --output=classes.csv
    keras-vit predict --model=runs/dogs test --csv --wide --tta=flip --output=submission.csv

Folders are searched recursively. Images are preprocessed for the model. They may have as many
pixels as in the model's training, by default 100 megapixels. Unreadable files are skipped and
listed on standard error, and the exit code is then 1.

A model that predicts a class or a depth for each pixel writes the folder --output: masks/ (class
numbers, gray PNG files) and overlays/, or depths/ (float32 .npy files) and pictures/, each at the
size of the image.

The default output is plain text. --json writes one object per line, best class first:
{"image": FILE, "classes": [{"class": NAME, "probability": P}, ...]}. --csv writes the columns
image, rank, class and probability. --csv --wide writes a row per image: the column id, which is the
file's name without folder and ending, and the probability of each class in a column of its name.

--tta=flip averages the probabilities of each image and its mirror image (test-time augmentation).
"""

import collections
import contextlib
import csv
import functools
import json
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from absl import flags

from keras_vit import files, terminal
from keras_vit.commands import command_line, shared_flags
from keras_vit.commands.image_files import Classifier, exit_if_unreadable, find_images
from keras_vit.commands.pixels import write_pixels
from keras_vit.data.sources.listing import printable
from keras_vit.export.dense_signatures import predicts_of
from keras_vit.models.any_model import takes_any_size

POSITIONAL = ("IMAGES...",)
FLAGS = flags.FLAGS


def define_flags():
    shared_flags.define_model()
    shared_flags.define_class_names()
    flags.DEFINE_integer("top", 5, "Number of classes per image, best first.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 32, "Number of images per batch.", lower_bound=1)
    flags.DEFINE_bool("json", False, "Write one JSON object per image, each on its own line.")
    flags.DEFINE_bool("csv", False, "Write CSV with a header.")
    flags.DEFINE_bool("wide", False, "With --csv, write a column per class and a row per image.")
    flags.DEFINE_enum(
        "tta", "", ["", "flip"], "Test-time augmentation: average over the mirror image."
    )
    flags.DEFINE_string(
        "output", "", "File to write when all images are done; by default, standard output."
    )
    flags.DEFINE_bool(
        "windows", False, "For masks and depths: average overlapping windows of the whole image."
    )


def main(*sources):
    check_flags()
    paths = find_images(sources)
    if FLAGS.wide:
        ids = [printable(path.stem) for path in paths]
        check_unique(ids, "file names must be unique without their folder and ending")
    model, details, _ = shared_flags.chosen_model()
    if predicts_of(model):
        unreadable = predict_dense(model, details, sources)
    else:
        unreadable = predict_classes(model, details, paths)
    exit_if_unreadable(unreadable, paths)


def check_flags():
    """Raises a `ValueError` for flags that do not fit together, before the model is loaded."""
    if FLAGS.json and FLAGS.csv:
        raise ValueError("Pass --json or --csv, not both. Received: json=True, csv=True")
    if FLAGS.wide and not FLAGS.csv:
        raise ValueError("--wide needs --csv. Received: wide=True, csv=False")
    if FLAGS.wide and FLAGS["top"].present:
        raise ValueError(
            "--wide writes all classes, so --top does not apply; pass one of them. Received: "
            f"wide=True, top={FLAGS.top}"
        )
    command_line.check_output(FLAGS.output, takes_folder=True)


def predict_dense(model, details, sources):
    """Writes the masks or depths of a model that predicts pixels; returns the number of files that
    cannot be read."""
    if not FLAGS.output or FLAGS.json or FLAGS.csv or FLAGS.tta:
        raise ValueError(
            "A model that predicts pixels needs a folder --output, and no --json, --csv or --tta. "
            f"Received: output={FLAGS.output!r}, json={FLAGS.json}, csv={FLAGS.csv}, "
            f"tta={FLAGS.tta!r}"
        )
    command_line.check_folder(FLAGS.output)
    details = shared_flags.with_class_names(details, FLAGS.class_names, model)
    return write_pixels(model, details, sources, FLAGS.output, FLAGS.windows, FLAGS.top)


def predict_classes(model, details, paths):
    """Writes the classes of image files; returns the number of files that cannot be read."""
    command_line.check_output(FLAGS.output)
    if FLAGS.windows:
        raise ValueError("--windows is for models that predict pixels. Received: windows=True")
    classifier = Classifier(model, details, FLAGS.class_names)
    if FLAGS.wide:
        check_unique(
            ["id", *classifier.class_names],
            "class names must be unique and other than 'id'; pass a file with such names as "
            "--class_names",
        )
    if not (FLAGS.class_names or details.get("class_names")):
        terminal.write("the model has no class names; set them with --class_names", sys.stderr)
    if FLAGS.tta and takes_any_size(model):
        raise ValueError(
            "--tta=flip needs a model for images of one size. Received: "
            f"tta={FLAGS.tta!r}, model={model.name!r}"
        )
    done = write_predictions(classifier, paths)
    if FLAGS.output:
        print(f"wrote {FLAGS.output}: {done} images")
    return len(paths) - done


def write_predictions(classifier, paths):
    """Writes one prediction at a time, in the selected format; returns the number of readable
    files."""
    width = min(max(len(printable(path)) for path in paths), 60)
    done = 0
    with files.atomic_write(FLAGS.output) if FLAGS.output else contextlib.nullcontext() as file:
        write = file.write if file else lambda text: terminal.write(text.removesuffix("\n"))
        table = csv.writer(types.SimpleNamespace(write=write), lineterminator="\n")
        if FLAGS.wide:
            table.writerow(["id", *classifier.class_names])
        elif FLAGS.csv:
            table.writerow(["image", "rank", "class", "probability"])
        function = classifier.probabilities
        if FLAGS.tta == "flip":
            function = functools.partial(mean_of_mirrored, function)
        for path, row in predict(classifier.reader, function, paths, FLAGS.batch_size):
            done += 1
            if FLAGS.wide:
                table.writerow([printable(path.stem), *map(float, row)])
                continue
            best = [
                (classifier.class_names[i], float(row[i]))
                for i in np.argsort(-row, kind="stable")[: FLAGS.top]
            ]
            if FLAGS.csv:
                for rank, prediction in enumerate(best, start=1):
                    table.writerow([printable(path), rank, *prediction])
            else:
                write(format_prediction(printable(path), best, width))
    return done


def check_unique(names, rule):
    """Raises a `ValueError` that states the rule if a name occurs twice."""
    repeated = [name for name, count in collections.Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"With --wide, {rule}. Received several times: {repeated[:10]}")


def mean_of_mirrored(function, images):
    """Returns the mean of a function's outputs for images and for their mirror images."""
    return (function(images) + function(np.ascontiguousarray(images[:, :, ::-1]))) / 2


def predict(reader, function, paths, batch_size):
    """Yields `(path, output)` for each readable file; prints errors of other files to standard
    error.

    `function` maps a batch of images, float32 `(B, H, W, C)`, to their outputs.
    """

    def read(path):
        try:
            return reader.read(printable(path), path.read_bytes())[0]
        except (OSError, ValueError) as error:
            return error

    size = min(batch_size, len(paths))
    with (
        ThreadPoolExecutor(8) as pool,
        terminal.progress_bar("predicting", len(paths), "images") as update,
    ):
        for first in range(0, len(paths), size):
            batch = paths[first : first + size]
            images = list(pool.map(read, batch))
            readable = [image for image in images if isinstance(image, np.ndarray)]
            # Repeat an image to keep the batch size, so that the model is compiled once.
            inputs = readable + readable[:1] * (size - len(readable))
            outputs = iter(function(np.stack(inputs)) if readable else ())
            update(first + len(batch))
            for path, image in zip(batch, images):
                if isinstance(image, np.ndarray):
                    yield path, next(outputs)
                else:
                    terminal.write(image, sys.stderr)


def format_prediction(name, best, width):
    """Returns the line for one image, in JSON or plain text.

    `best` lists `(class name, probability)`, best first.
    """
    if FLAGS.json:
        classes = [
            {"class": class_name, "probability": probability} for class_name, probability in best
        ]
        return json.dumps({"image": name, "classes": classes}, ensure_ascii=False) + "\n"
    classes = ", ".join(
        f"{class_name} {100 * probability:.1f} %" for class_name, probability in best
    )
    return f"{name:{width}}  {classes}\n"
