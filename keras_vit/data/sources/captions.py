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

import tensorflow as tf

from keras_vit.data.sources import record_files, tfds
from keras_vit.data.sources.listing import existing, file_source
from keras_vit.data.sources.source import check_pattern, checksum_of
from keras_vit.data.sources.tables import HEADERS, Files
from keras_vit.data.sources.text_files import check_columns, csv_rows, text_of

_CAPTION_HEADERS = ("caption", "text", "title")


def split_of_captions(split, *, path=""):
    """Loads image files with captions from a list; `split` is its path.

    A `.csv` list has the columns `file` and `caption`, or two columns without a header. A `.jsonl`
    list has an object per line with these keys. `file_name` and `text` work too. A caption with a
    comma needs quotes in a `.csv` list.

    Args:
        path: folder to which relative file names refer; "" for the folder of the list.
    """
    check_pattern(split, path, split)
    files = Files(path or posixpath.dirname(split) or ".")
    paths = []
    captions = []
    for line, fields in _rows(split):
        file = next((fields[name] for name in fields if name in HEADERS), None)
        caption = next((fields[name] for name in _CAPTION_HEADERS if name in fields), None)
        if not all(isinstance(text, str) and text.strip() for text in (file, caption)):
            raise ValueError(
                "Each line must have a file and a caption, both texts that are not empty, with "
                f"names such as file and caption. Received: line {line} of {split!r}"
            )
        paths.append(files.path(file))
        captions.append(caption)
    if not paths:
        raise ValueError(f"The list is empty. Received: path={split!r}")
    if missing := sorted(set(paths) - existing(paths)):
        raise ValueError(
            f"{len(missing)} files are missing; relative names refer to the folder of the list or "
            f"to --config.data.path. Received: {missing[:10]} in {split!r}"
        )
    source = file_source(paths)
    texts = tf.constant(captions)

    def read(index):
        return {**source.read(index), "caption": texts[index]}

    def checksum():
        return zlib.crc32("\n".join(captions).encode(), checksum_of(paths, moves=True))

    return dataclasses.replace(source, read=read, checksum=checksum, target="texts")


def _rows(path):
    """Yields `(line number, fields)` for each line of a list; `fields` is a dict."""
    if path.endswith(".csv"):
        rows = csv_rows(path)
        names = [name.lower() for name in rows[0][1]] if rows else []
        if HEADERS.isdisjoint(names):
            names = ["file", "caption"]
        else:
            check_columns(names, path)
            rows = rows[1:]
        for line, cells in rows:
            if any(cells[len(names) :]):
                raise ValueError(
                    f"A line has more than {len(names)} columns; put captions with commas in "
                    f"quotes. Received: {','.join(cells)!r:.200} in line {line} of {path!r}"
                )
            yield line, dict(zip(names, cells))
    elif path.endswith(".jsonl"):
        # `splitlines` would also split at U+2028 and others, which a caption may contain.
        for line, text in enumerate(text_of(path).split("\n"), 1):
            if text.strip():
                yield line, _parsed(text)
    else:
        raise ValueError(f"A list of captions must be a .csv or .jsonl file. Received: {path!r}")


def _parsed(text):
    """Returns the object in a line of JSON as a dict, which is empty for anything else."""
    try:
        return dict(json.loads(text))
    except (TypeError, ValueError):
        return {}


def split_of_caption_tfrecords(
    split, *, path="", image_key="", caption_key="caption", num_examples=0
):
    """Loads TFRecords of encoded images and captions whose names match `split`.

    Args:
        path: folder of the TFRecords; "" if the patterns contain it.
        image_key: name of the image feature; "" for "image/encoded".
        caption_key: name of the feature with the caption, a text.
        num_examples: expected number of records, in a config those of `train_split`; 0 if unknown.
    """
    image_key = image_key or "image/encoded"
    features = {key: tf.io.FixedLenFeature([], tf.string) for key in (image_key, caption_key)}

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        return {"image": example[image_key], "caption": example[caption_key]}

    pattern = record_files.pattern_of(split, path)
    source = record_files.record_source(
        pattern, parse, num_examples, class_names=(), target="texts"
    )
    _check_first(source, caption_key)
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
    keys = caption_key.split("/")
    stored = tfds.open_split(name, split, path, [image_key, keys[0]])

    def example_of(values):
        caption = functools.reduce(lambda value, key: value[key], keys, values)
        return {"image": values[image_key], "caption": caption}

    source = tfds.stored_source(stored, example_of, class_names=(), target="texts")
    _check_first(source, caption_key)
    return source


def _check_first(source, caption_key):
    """Raises a `ValueError` unless the first example has a caption."""
    features = f"a text, --config.data.caption_key={caption_key}, and an image file"
    example = record_files.first_example(source, features)
    if example is not None and getattr(example["caption"], "dtype", None) != tf.string:
        raise ValueError(
            f"Examples must have {features}. Received: a caption of another type in "
            f"{source.name_of(0)}"
        )
