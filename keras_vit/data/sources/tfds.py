"""Datasets of TensorFlow Datasets, by name, with images left encoded until the pipeline decodes them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.shards import Shards, open_tfrecords
from keras_vit.data.sources.source import Source, check_names, checksum_of
from keras_vit.data.sources.tfrecords import RecordIndex


def tfds(
    name: str,
    split: str,
    data_dir: str = "",
    image_key: str = "image",
    label_key: str | Callable = "label",
    class_names: Sequence[str] | None = None,
    scale: int = 1,
) -> Source:
    """A source of one split of a classification dataset of TensorFlow Datasets.

    If the prepared files are array_record, or local TFRecords, which are indexed, any example can be read at once.
    Other TFRecords (`gs://`) are read in order, by the lengths of their files that TFDS knows.

    Args:
        name: as `tfds.builder` takes it: `cifar10`, `cifar10:3.*.*`, `eurosat/rgb:2.*.*`.
        split: as TFDS has it: `train`, `train[:800]+validation[:200]`, `test[50%:]`.
        data_dir: where the datasets lie; by default TFDS's own place.
        image_key: the feature with the image.
        label_key: the feature with the label, or with the list of labels that count as right; or a function from all
            features to the label, an integer, which needs `class_names`.
        class_names: the dataset's own names in another order, or names for one whose classes are only numbered.
        scale: what pixels are multiplied by; 255 for images of 0 and 1.

    Raises:
        ValueError: there is no such dataset, version, split or feature, it is not prepared in `data_dir`, or it has
            other class names.
    """
    # tensorflow_datasets takes seconds to import, and only these sources need it.
    import tensorflow_datasets

    try:
        builder = tensorflow_datasets.builder(name, data_dir=data_dir or None)
    except (tensorflow_datasets.core.registered.DatasetNotFoundError, AssertionError) as error:
        raise ValueError(f"TFDS has no such dataset. Received: name={name!r} ({str(error).splitlines()[0]})") from None
    features = builder.info.features
    keys = [image_key] if callable(label_key) else [image_key, label_key]
    if not set(keys) <= set(features):
        raise ValueError(f"{name} has the features {sorted(features)}. Received: {keys}")
    decoders = {image_key: tensorflow_datasets.decode.SkipDecoding()}
    try:
        parts = builder.info.splits[split].file_instructions
        tf.io.gfile.stat(str(parts[0].filename))
    except (KeyError, ValueError, AssertionError, IndexError, tf.errors.OpError) as error:
        raise ValueError(
            f"{name} has the splits {sorted(builder.info.splits)} in {str(builder.data_dir)!r}; if it is not prepared "
            f"there, `tfds build` or `tfds.builder({name!r}).download_and_prepare()` does it. "
            f"Received: split={split!r} ({str(error).splitlines()[0]})"
        ) from None
    known = () if callable(label_key) else _class_names(features[label_key])
    names = check_names(class_names or known)
    place_of = _places(name, known, names)

    def parse(record):
        stored = features.deserialize_example(record, decoders=decoders)
        label = tf.cast(label_key(stored) if callable(label_key) else stored[label_key], tf.int64)
        return {"image": stored[image_key], "label": label if place_of is None else _placed(place_of, label)}

    files, skips = [str(part.filename) for part in parts], [part.skip for part in parts]
    rest: dict[str, Any] = {"class_names": names, "max_value": 255 // scale}
    rest["checksum"] = functools.partial(checksum_of, files)
    lengths = [part.examples_in_shard - part.skip if part.take < 0 else part.take for part in parts]
    kind = builder.info.file_format.value
    if kind == "array_record":
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        records = ArrayRecordDataSource(parts)

        def read(index):
            record = tf.numpy_function(lambda i: records[int(i)], [index], tf.string, stateful=False)
            return parse(tf.ensure_shape(record, []))

        return Source(read, sum(lengths), name_of=f"{name} {split} example {{}}".format, **rest)
    if kind != "tfrecord":
        raise ValueError(f"The files must be of the formats tfrecord or array_record. Received: {kind} of {name}")
    if _are_local(files):
        index = RecordIndex(files, [(part.skip, part.take) for part in parts])
        return Source(lambda i: parse(index.read(i)), len(index), name_of=index.name_of, **rest)
    shards = Shards(np.array(lengths, np.int64), open_tfrecords(files, skips), parse)
    return Source(None, shards.num_examples, shards=shards, name_of=shards.namer(files, skips), **rest)


def _placed(place_of, label):
    """The place of a label; a negative one, which means none, stays."""
    return tf.where(label < 0, label, tf.gather(place_of, tf.maximum(label, 0)))


def _are_local(files):
    return not any("://" in file for file in files)


def _class_names(feature):
    """The names of a ClassLabel, or of a sequence of them; () for another feature."""
    feature = getattr(feature, "feature", feature)
    return () if getattr(feature, "num_classes", None) is None else check_names(feature.names)


def _places(dataset, known, names):
    """The label that each of a dataset's own becomes, int64 `(classes,)`; None if they stay."""
    if not names:
        raise ValueError(f"A label without names needs `class_names`. Received: name={dataset!r}")
    if names == known or not known:
        return None
    if set(names) == set(known):
        return tf.constant([names.index(name) for name in known], tf.int64)
    if len(names) == len(known) and known == tuple(map(str, range(len(known)))):  # only numbered
        return None
    other = sorted(set(names) ^ set(known))
    raise ValueError(
        f"`class_names` must be the {len(known)} names that {dataset} has, in any order. "
        f"Received: {len(names)} names, {other[:10]} in one of the two alone"
    )
