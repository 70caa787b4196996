"""Finds the images that match a text, with a model that has an image and a text tower.

    keras-vit search --weights=google/siglip2-base-patch16-224 --data=photos "a red bicycle"
    keras-vit search --model=runs/pairs --data=photos --top=20 "a red bicycle" "a dog at the sea"

Prints the best files for each text and draws them in the contact sheet --output. The embeddings of
the images are stored next to it, in OUTPUT.npz; another search computes only those of new or
changed files, unless the model changed. Unreadable files are skipped and listed on standard error,
and the exit code is then 1.
"""

import contextlib
import zipfile
import zlib
from pathlib import Path

import numpy as np
from absl import flags

import keras_vit
from keras_vit import files
from keras_vit.commands import command_line, shared_flags
from keras_vit.commands.image_files import exit_if_unreadable, find_images, reader_of
from keras_vit.commands.predict import predict
from keras_vit.data.sources.listing import printable
from keras_vit.models import TwoTowers
from keras_vit.models.any_model import weights_digest
from keras_vit.models.zero_shot_words import embed_texts, tokenizer_of
from keras_vit.plots import image_axes, shortened

POSITIONAL = ("TEXTS...",)
FLAGS = flags.FLAGS


def define_flags():
    flags.DEFINE_string("model", "", "The workdir of a run of the task image_text.")
    flags.DEFINE_string("weights", "", "Published weights with both towers, a path or a URL.")
    flags.DEFINE_string("tokenizer", "", "Path or repository; by default, that of the weights.")
    flags.DEFINE_string(
        "data", None, "Folder of images, which is searched recursively, or a file.", required=True
    )
    flags.DEFINE_integer("top", 8, "Number of images per text, best first.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 32, "Number of images per batch.", lower_bound=1)
    flags.DEFINE_string(
        "output",
        "search.png",
        "Picture to draw; the embeddings of the images are stored next to it.",
    )


def main(*texts):
    command_line.check_picture(FLAGS.output)
    output = Path(FLAGS.output).resolve()
    paths = [path for path in find_images([FLAGS.data]) if path.resolve() != output]
    towers, details = load_towers()
    tokenizer = tokenizer_of(towers, FLAGS.tokenizer)
    reader = reader_of(towers.image, details)
    readable, embeddings = image_embeddings(towers, reader, paths, f"{FLAGS.output}.npz")
    queries = embed_texts(towers, texts, tokenizer)
    scores = queries @ embeddings.T
    best = np.argsort(-scores, axis=1, kind="stable")[:, : FLAGS.top]
    for text, order, scores_of_text in zip(texts, best, scores):
        print(f"{text}:")
        for i in order:
            print(f"  {scores_of_text[i]:.3f}  {printable(readable[i])}")
    draw(FLAGS.output, reader, texts, [[readable[i] for i in order] for order in best])
    print(f"drew {FLAGS.output}")
    exit_if_unreadable(len(paths) - len(readable), paths)


def load_towers():
    """Returns the `TwoTowers` that `--model` or `--weights` selects, and their details as in
    `shared_flags.load_model`."""
    if bool(FLAGS.model) == bool(FLAGS.weights):
        raise ValueError(
            "Pass either --model or --weights. Received: "
            f"model={FLAGS.model!r}, weights={FLAGS.weights!r}"
        )
    if FLAGS.weights:
        return keras_vit.from_pretrained(FLAGS.weights, tower="both"), {}
    model, details = shared_flags.load_model(FLAGS.model)
    if not isinstance(model, TwoTowers):
        raise ValueError(
            "--model must be a run of the task image_text, with an image and a text tower. "
            f"Received: model={FLAGS.model!r}"
        )
    return model, details


def image_embeddings(towers, reader, paths, cache):
    """Returns the readable files and their embeddings `(N, E)`; reads and updates the file
    `cache`."""
    identity = f"{weights_digest(towers.image)} {towers.preprocessing}"
    keys = {path: _key(path) for path in paths}
    known = _read_cache(cache, identity)
    missing = [path for path in paths if keys[path] not in known]
    if missing:
        rows = predict(
            reader,
            lambda images: np.asarray(towers.encode_image(images, training=False)),
            missing,
            FLAGS.batch_size,
        )
        known |= {keys[path]: row for path, row in rows}
    readable = [path for path in paths if keys[path] in known]
    if not readable:
        raise ValueError(f"No image can be read. Received: data={FLAGS.data!r}")
    embeddings = np.stack([known[keys[path]] for path in readable])
    print(f"{len(readable)} images, {len({*missing} & {*readable})} of them new")
    if missing:
        names = np.array([keys[path] for path in readable])
        with files.atomic_write(cache, "wb") as file:
            np.savez(file, identity=identity, names=names, embeddings=embeddings)
    return readable, embeddings


def _key(path):
    """Returns the key of a file in the cache: its path, size and time of change; only the path of a
    file that cannot be read, such as a link to a missing file."""
    key = printable(path.resolve())
    with contextlib.suppress(OSError):
        status = path.stat()
        key += f" {status.st_size} {status.st_mtime_ns}"
    return key


def _read_cache(path, identity):
    """Returns the stored embeddings by key; {} if they belong to a model of another identity."""
    try:
        # `np.load` leaves a damaged file open if it has opened the file itself.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            if str(stored["identity"]) == identity:
                return dict(zip(stored["names"].tolist(), stored["embeddings"]))
    # There is no file, or a damaged one.
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error):
        pass
    return {}


def draw(output, reader, texts, rows):
    """Draws the best images of each text, one row for each text."""
    columns = max(map(len, rows))
    figure, axes = image_axes(len(rows), columns, (1.75 * columns, 2.2 * len(rows)))
    for text, paths, axes_of_text in zip(texts, rows, axes):
        axes_of_text[0].set_title(shortened(text, 24 * columns), fontsize=10, loc="left")
        for path, ax in zip(paths, axes_of_text):
            ax.imshow(reader.read(str(path), path.read_bytes())[1])
            name = shortened(printable(path.name), 24)
            ax.text(0.5, -0.03, name, fontsize=7, ha="center", va="top", transform=ax.transAxes)
    with files.atomic_path(output) as temporary:
        figure.savefig(temporary, dpi=100)
