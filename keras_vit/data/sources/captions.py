"""Sources of images with captions: lists of image files, TFRecords, and datasets of TFDS.

An example is `{"image": ..., "caption": ...}`. The caption is a scalar string, or a vector of
strings, of which the first is used. An image with several captions may occur on several lines of a
list.
"""

import dataclasses
import functools
import json
import posixpath
import zlib
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from keras_vit.data.sources import tfds, tfrecords
from keras_vit.data.sources.listing import csv_rows, entries, file_source, text_of
from keras_vit.data.sources.source import Source, check_pattern, checksum_of
from keras_vit.data.sources.tables import HEADERS

CAPTION_HEADERS = ("caption", "text", "title")


def split_of_captions(split, *, path=""):
    """Loads image files with captions from a list; `split` is its path.

    A `.csv` list has the columns `file` and `caption`, or two columns without a header. A `.jsonl`
    list has an object per line with these keys. `file_name` and `text` work too. A caption with a
    comma needs quotes in a `.csv` list.

    Args:
        path: folder to which relative file names refer; "" for the folder of the list.
    """
    check_pattern(split, path, split)
    rows = list(_rows(split))
    wrong = [
        number for number, *row in rows if not all(isinstance(x, str) and x.strip() for x in row)
    ]
    if wrong or not rows:
        where = f"line {wrong[0]}" if wrong else "an empty list"
        raise ValueError(
            "Each line must have a file and a caption, both texts that are not empty. Received: "
            f"{where} of {split!r}"
        )
    root = path or posixpath.dirname(split) or "."
    paths = [name if "://" in name else posixpath.join(root, name) for _, name, _ in rows]
    captions = [caption for *_, caption in rows]
    _check_files(paths, split)
    source = file_source(paths)
    texts = tf.constant(captions)

    def read(index):
        return {**source.read(index), "caption": texts[index]}

    def checksum():
        return zlib.crc32("\n".join(captions).encode(), checksum_of(paths, moves=True))

    return dataclasses.replace(source, read=read, checksum=checksum, target="texts")


def _rows(path):
    """Yields `(line number, file, caption)` for each line of a list; None for what is missing."""
    if Path(path).suffix == ".csv":
        yield from _rows_of_table(path)
        return
    if Path(path).suffix != ".jsonl":
        raise ValueError(f"A list of captions must be a .csv or .jsonl file. Received: {path!r}")
    # `splitlines` would also split at U+2028 and others, which a caption may contain.
    for number, line in enumerate(text_of(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = dict(json.loads(line))
        except (TypeError, ValueError):
            fields = {}
        file = next((name for name in fields if name in HEADERS), None)
        yield number, fields.get(file), fields.get(_first(fields, CAPTION_HEADERS))


def _rows_of_table(path):
    """Yields the same as `_rows`, for a `.csv` list."""
    columns = (0, 1)
    count = 2
    rows = [(line, row) for line, row in csv_rows(path) if any(map(str.strip, row))]
    for line, row in rows:
        names = [cell.strip().lower() for cell in row]
        if line == rows[0][0] and HEADERS & set(names):
            caption = _first(names, CAPTION_HEADERS)
            if caption is None:
                raise ValueError(
                    f"A column must be named {' or '.join(CAPTION_HEADERS)}. Received: "
                    f"{','.join(row)!r} in line {line} of {path!r}"
                )
            file = next(i for i, name in enumerate(names) if name in HEADERS)
            columns = file, names.index(caption)
            count = len(names)
        elif any(names[count:]):
            raise ValueError(
                f"A line has more than {count} columns; put captions with commas in quotes. "
                f"Received: {','.join(row)!r:.200} in line {line} of {path!r}"
            )
        else:
            cells = [row[i].strip() if i < len(row) else None for i in columns]
            yield (line, *cells)


def _first(names, known):
    """Returns the first of the known names that a list has, or None."""
    return next((name for name in known if name in names), None)


def _check_files(paths, split):
    """Raises a `ValueError` if a file is missing; lists folders instead of checking each file."""
    folders = filter(tf.io.gfile.isdir, {posixpath.dirname(name) for name in paths})
    present = {posixpath.join(folder, name) for folder in folders for name in entries(folder)[1]}
    if missing := sorted(set(paths) - present):
        raise ValueError(
            f"{len(missing)} files are missing; relative names refer to the folder of the list or "
            f"to --config.data.path. Received: {missing[:10]} in {split!r}"
        )


def split_of_caption_tfrecords(
    split, *, path="", image_key="", caption_key="caption", num_examples=0
):
    """Loads TFRecords of encoded images and captions whose names match `split`.

    Args:
        path: folder of the TFRecords; "" if the patterns contain it.
        image_key: name of the image feature; "" for "image/encoded".
        caption_key: name of the feature with the caption, a text.
        num_examples: expected number of records; 0 if unknown.
    """
    pattern = f"{path.rstrip('/')}/{split}" if path else split
    check_pattern(split, path, pattern)
    paths = sorted(tf.io.gfile.glob(pattern))
    image_key = image_key or "image/encoded"
    features = {key: tf.io.FixedLenFeature([], tf.string) for key in (image_key, caption_key)}

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        return {"image": example[image_key], "caption": example[caption_key]}

    if not paths:
        raise ValueError(f"`split` must match at least one file. Received: {pattern!r}")
    rest = {
        "class_names": (),
        "checksum": functools.partial(checksum_of, paths, moves=True),
        "stored": lambda: [(file, 0, 1) for file in paths],
        "target": "texts",
    }
    source = tfrecords.record_source(paths, parse, rest)
    _check_first(source, caption_key)
    if num_examples not in (0, source.num_examples):
        raise ValueError(
            f"The files must contain `num_examples` records. Received: num_examples={num_examples},"
            f" {source.num_examples} records in {pattern!r}"
        )
    return source


def split_of_caption_tfds(split, name, *, path="", image_key="", caption_key="caption"):
    """Loads a split of a dataset of TFDS with captions.

    Args:
        path: data folder of TFDS; "" for the default.
        image_key: name of the image feature; "" for "image".
        caption_key: name of the feature with the caption; "captions/text" is the field `text` of
            each item of `captions`.
    """
    image_key = image_key or "image"
    keys = [image_key, caption_key.split("/")[0]]
    builder, parts, decoders = tfds.open_split(name, split, path, keys)

    def parse(record):
        stored = builder.info.features.deserialize_example(record, decoders=decoders)
        caption = functools.reduce(lambda value, key: value[key], caption_key.split("/"), stored)
        return {"image": stored[image_key], "caption": caption}

    source = tfds.read_parts(
        builder, name, split, parts, parse, {"class_names": (), "target": "texts"}
    )
    _check_first(source, caption_key)
    return source


def _check_first(source, caption_key):
    """Raises a `ValueError` unless the first example has a caption; not for remote files."""
    if source.read is None:
        return
    try:
        caption = source.read(tf.constant(0, tf.int64))["caption"]
        problem = "" if caption.dtype == tf.string else f"of type {caption.dtype.name}"
    except (tf.errors.OpError, AttributeError, KeyError, TypeError) as error:
        problem = str(error).splitlines()[0]
    if problem:
        raise ValueError(
            "--config.data.caption_key must name a text, and --config.data.image_key an encoded "
            f"image. Received: caption_key={caption_key!r}, {problem} in {source.name_of(0)}"
        )


SOURCES: dict[str, Callable[..., Source]] = {
    "captions": split_of_captions,
    "caption_tfrecords": split_of_caption_tfrecords,
    "caption_tfds": split_of_caption_tfds,
}
"""Maps the names of these sources to functions; see `data.SOURCES`."""
