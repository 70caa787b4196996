"""Datasets of TensorFlow Datasets, by name, with images left encoded until the pipeline decodes them."""

import os

import tensorflow as tf

from keras_vit.data.sources.source import Source
from keras_vit.data.sources.tfrecords import FILES_AT_A_TIME, RECORDS_AT_A_TIME, RecordIndex


def tfds(name, split, data_dir="", image_key="image", label_key="label", label=None, class_names=None, scale=1):
    """A source of one split of a classification dataset of TensorFlow Datasets.

    Where the prepared files are local TFRecords, they are indexed and any example can be read at once. Elsewhere
    (`gs://`, array_record) the records are read in order, not decoded; a resumed run skips them.

    Args:
        name: as `tfds.builder` takes it: `cifar10`, `cifar10:3.*.*`, `eurosat/rgb:2.*.*`.
        split: as TFDS has it: `train`, `train[:800]+validation[:200]`, `test[50%:]`.
        data_dir: where the datasets lie; by default TFDS's own place.
        image_key: the feature with the image.
        label_key: the feature with the label, or with the list of labels that count as right.
        label: a function from all features to the label, int64, instead of `label_key`. Needs `class_names`.
        class_names: a name for each class, instead of the dataset's own.
        scale: what pixels are multiplied by; 255 for images of 0 and 1.

    Raises:
        ValueError: there is no such dataset, version, split or feature, or it is not prepared in `data_dir`.
    """
    # tensorflow_datasets takes seconds to import, and only these sources need it.
    import tensorflow_datasets

    try:
        builder = tensorflow_datasets.builder(name, data_dir=data_dir or None)
    except (tensorflow_datasets.core.registered.DatasetNotFoundError, AssertionError) as error:
        raise ValueError(f"TFDS has no such dataset. Received: name={name!r} ({str(error).splitlines()[0]})") from None
    features = builder.info.features
    keys = [image_key] if label else [image_key, label_key]
    if not set(keys) <= set(features):
        raise ValueError(f"{name} has the features {sorted(features)}. Received: {keys}")
    decoders = {image_key: tensorflow_datasets.decode.SkipDecoding()}

    def stored():
        # Some files in turns, always the same ones: an order that depends on nothing.
        config = tensorflow_datasets.ReadConfig(
            interleave_cycle_length=FILES_AT_A_TIME,
            interleave_block_length=RECORDS_AT_A_TIME,
            num_parallel_calls_for_interleave_files=FILES_AT_A_TIME,
            try_autocache=False,
        )
        return builder.as_dataset(split=split, decoders=decoders, read_config=config, shuffle_files=False)

    try:
        # Without a description of the splits there may still be data, which can be counted.
        chosen = builder.info.splits[split] if builder.info.splits else None
        num_examples = chosen.num_examples if chosen else int(stored().cardinality())
    except (KeyError, ValueError, AssertionError) as error:
        known = sorted(builder.info.splits)
        raise ValueError(
            f"{name} has the splits {known} in {str(builder.data_dir)!r}; if it is not prepared there, `tfds build` or "
            f"`tfds.builder({name!r}).download_and_prepare()` does it. "
            f"Received: split={split!r} ({str(error).splitlines()[0]})"
        ) from None

    def example(record):
        value = label(record) if label else record[label_key]
        return {"image": record[image_key], "label": tf.cast(value, tf.int64)}

    names = tuple(class_names or _class_names(features[label_key]))
    rest = {"num_examples": num_examples, "class_names": names, "max_value": 255 // scale}
    files = _local_tfrecords(builder, chosen) if chosen else []
    if files:
        index = RecordIndex([file for file, _ in files], [span for _, span in files])
        read = lambda i: example(features.deserialize_example(index.read(i), decoders=decoders))  # noqa: E731
        return Source(read, name_of=index.name_of, **rest)

    name_of = f"{name} {split} example {{}}".format
    return Source(None, records=lambda: stored().map(example), name_of=name_of, **rest)


def _local_tfrecords(builder, split):
    """`(file, (skip, take))` for each file of a split, none where they are not TFRecords on this machine."""
    from tensorflow_datasets.core import file_adapters

    if builder.info.file_format != file_adapters.FileFormat.TFRECORD:
        return []
    parts = [(str(part.filename), (part.skip, part.take)) for part in split.file_instructions]
    return parts if all(os.path.exists(file) for file, _ in parts) else []


def _class_names(feature):
    """The names of a ClassLabel, or of a sequence of them."""
    feature = getattr(feature, "feature", feature)
    if getattr(feature, "num_classes", None) is None:
        raise ValueError(f"A label without names needs `class_names`. Received: {feature}")
    return feature.names
