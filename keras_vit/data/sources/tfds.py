"""Sources from TensorFlow Datasets (TFDS). Images stay encoded until the pipeline decodes them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_vit.data.sources.record_files import source_of_files
from keras_vit.data.sources.source import Source, check_names, checksum_of
from keras_vit.data.sources.text_files import names_in


def tfds(
    name: str,
    split: str,
    data_dir: str = "",
    image_key: str = "image",
    label_key: str | Callable = "label",
    class_names: Sequence[str] | None = None,
    scale: int = 1,
) -> Source:
    """Returns a source of one split of a classification dataset of TensorFlow Datasets.

    ArrayRecord files and local TFRecords are read by index; remote TFRecords (`gs://`) are read in
    order.

    Args:
        name: a name for `tfds.builder`, such as `cifar10`, `cifar10:3.*.*` or `eurosat/rgb:2.*.*`.
        split: a split in the syntax of TFDS, such as `train`, `train[:800]+validation[:200]` or
            `test[50%:]`.
        data_dir: folder of the datasets; "" for the default of TFDS.
        image_key: name of the image feature.
        label_key: name of a feature whose value is a label or a list of all correct labels; or a
            function that maps all features to an integer label. A function requires `class_names`.
            A negative label means that the image has no label; an empty list means that it has no
            correct class.
        class_names: names for a dataset that has none or only numbers; None for the names in the
            dataset.
        scale: factor on pixel values; 255 for images with values 0 and 1.

    Raises:
        ValueError: the dataset, version, split or feature does not exist, a feature has values of
            another kind, the dataset is not prepared in `data_dir`, its files are neither TFRecords
            nor ArrayRecords, or `class_names` are missing or do not fit the dataset.
    """
    keys = [image_key] if callable(label_key) else [image_key, label_key]
    stored = open_split(name, split, data_dir, keys)
    feature = None if callable(label_key) else stored.builder.info.features[label_key]
    if feature is not None and not _has_integers(feature):
        raise ValueError(
            "`label_key` must be a feature with integers. Received: "
            f"label_key={label_key!r}, which has {feature.dtype} in {name}"
        )
    known = _class_names(feature)
    names = check_names(class_names or known)
    _check_class_names(name, known, names)

    def example_of(values):
        label = tf.cast(label_key(values) if callable(label_key) else values[label_key], tf.int64)
        # A negative label means that the image has none, as in ImageNet's test split.
        label = tf.boolean_mask(label[None], [label >= 0]) if label.shape.rank == 0 else label
        return {"image": values[image_key], "label": label}

    return stored_source(
        stored,
        example_of,
        class_names=names,
        max_value=255 // scale,
        empty_is_negative=hasattr(feature, "feature"),
    )


class StoredSplit(NamedTuple):
    """A split of a dataset of TFDS."""

    title: str  # the names of the dataset and the split
    builder: Any
    parts: list  # the parts of files that contain the split
    decoders: dict  # keep the images encoded


def open_split(name, split, data_dir, keys):
    """Returns a `StoredSplit`; `keys` must be names of features, the first one that of the
    image."""
    # Import it here, because the import takes seconds.
    import tensorflow_datasets

    try:
        builder = tensorflow_datasets.builder(name, data_dir=data_dir or None)
    except (AssertionError, ValueError) as error:
        raise ValueError(
            "`name` must be a dataset of TFDS, as in tfds:mnist. Received: "
            f"name={name!r} ({str(error).splitlines()[0]})"
        ) from None
    features = builder.info.features
    if not set(keys) <= set(features):
        raise ValueError(f"{name} has the features {sorted(features)}. Received: {keys}")
    image = features[keys[0]]
    is_array = not isinstance(image.shape, dict) and len(image.shape) == 3
    # TFDS stores an `Image` of floats as a PNG file whose colors are the bytes of the numbers.
    is_coded = isinstance(image, tensorflow_datasets.features.Image) and image.dtype == tf.float32
    if image.dtype != tf.string and (is_coded or not is_array):
        raise ValueError(
            "`image_key` must be a feature with image files of integers or with arrays (H, W, C). "
            f"Received: image_key={keys[0]!r}, which has {image.dtype} of shape {image.shape} in "
            f"{name}"
        )
    try:
        parts = builder.info.splits[split].file_instructions
        tf.io.gfile.stat(str(parts[0].filename))
    except (KeyError, ValueError, AssertionError, IndexError, tf.errors.OpError) as error:
        raise ValueError(
            f"{name} has the splits {sorted(builder.info.splits)} in {str(builder.data_dir)!r}. If "
            "its files are missing, prepare it with `tfds build` or "
            f"`tfds.builder({name!r}).download_and_prepare()`. Received: split={split!r} "
            f"({str(error).splitlines()[0]})"
        ) from None
    decoders = {keys[0]: tensorflow_datasets.decode.SkipDecoding()}
    return StoredSplit(f"{name} {split}", builder, parts, decoders)


def stored_source(stored, example_of, **fields):
    """Returns the source of a `StoredSplit`, read by index if the files allow it, otherwise in
    order.

    `example_of` maps the values of all features to an example, and `fields` has further fields of
    `Source`.
    """
    parts = stored.parts
    info = stored.builder.info

    def parse(record):
        return example_of(info.features.deserialize_example(record, decoders=stored.decoders))

    files = [str(part.filename) for part in parts]
    skips = [part.skip for part in parts]
    lengths = [part.examples_in_shard - part.skip if part.take < 0 else part.take for part in parts]
    fields["checksum"] = functools.partial(checksum_of, files)
    fields["stored"] = lambda: zip(files, skips, map(int.__add__, skips, lengths))
    kind = info.file_format.value
    if kind == "tfrecord":
        return source_of_files(files, parse, skips, lengths, **fields)
    if kind != "array_record":
        raise ValueError(
            "The format of the files must be tfrecord or array_record. Received: "
            f"{kind} in {info.name}"
        )
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    records = ArrayRecordDataSource(parts)

    def read(index):
        record = tf.numpy_function(lambda i: records[int(i)], [index], tf.string, stateful=False)
        return parse(tf.ensure_shape(record, []))

    return Source(read, sum(lengths), name_of=f"{stored.title} example {{}}".format, **fields)


def split_of_tfds(split, name, *, path="", class_names="", image_key="", label_key=""):
    """Loads a split of a dataset of TFDS.

    Args:
        path: data folder of TFDS; "" for the default.
        class_names: path of a text file with one class name per line, in order; "" for the names in
            the dataset.
        image_key: name of the image feature; "" for "image".
        label_key: name of the label feature; "" for "label".
    """
    return tfds(
        name, split, path, image_key or "image", label_key or "label", names_in(class_names)
    )


def _has_integers(feature):
    """Returns whether a feature has integers or Booleans, and no further features."""
    dtype = feature.dtype
    if isinstance(dtype, dict):
        return False
    dtype = tf.as_dtype(dtype)
    return dtype.is_integer or dtype.is_bool


def _class_names(feature):
    """Returns the class names of a `ClassLabel` feature or of a sequence of such labels, or () for
    other features and None."""
    feature = getattr(feature, "feature", feature)
    return () if getattr(feature, "num_classes", None) is None else check_names(feature.names)


def _check_class_names(dataset, known, names):
    """Raises a `ValueError` unless `names` are those in the dataset, or replace numbers."""
    if not names:
        raise ValueError(
            "`class_names` must be set for a dataset without class names. Received: "
            f"name={dataset!r}"
        )
    numbers = tuple(map(str, range(len(names))))
    replaces_numbers = known == numbers and sorted(names) != sorted(known)
    if known and names != known and not replaces_numbers:
        raise ValueError(
            f"`class_names` must be the {len(known)} class names of {dataset}, in its order. "
            f"Received: {list(names)[:10]}, and {list(known)[:10]} in the dataset"
        )
