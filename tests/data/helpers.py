"""Image files, TFRecords and sources for the tests of `data`."""

import dataclasses
import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import data
from keras_vit.data.sources.shards import Shards


def jpeg(number, height=20, width=28):
    """Returns a JPEG that is unique for each number; its mean grows with the number."""
    image = np.random.default_rng(number).integers(0, 60, (height, width, 3)) + 3 * number
    return tf.io.encode_jpeg(image.astype(np.uint8), quality=95).numpy()


def smooth_image(height, width):
    """Returns a random image without sharp edges, uint8 `(height, width, 3)`."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.BICUBIC))


def encoded(image, file_format, mode="RGB", **options):
    """Returns a file that Pillow writes."""
    stream = io.BytesIO()
    Image.fromarray(image).convert(mode).save(stream, file_format, **options)
    return stream.getvalue()


def png(pixels):
    return tf.io.encode_png(pixels).numpy()


def png_chunk(name, content):
    """Returns a chunk of a PNG file, with its length and checksum."""
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def write_jpegs(folder, count):
    """Creates a folder with the files 0.jpg, 1.jpg and so on, written by `jpeg`."""
    folder.mkdir(parents=True)
    for i in range(count):
        (folder / f"{i}.jpg").write_bytes(jpeg(i))


def write_examples(path, examples):
    """Writes examples to a TFRecord file. Their features are bytes, an integer or integers."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            features = {name: _feature(value) for name, value in example.items()}
            record = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(record.SerializeToString())


def _feature(value):
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=np.atleast_1d(value).astype(int)))


def write_records(path, images, labels):
    """Writes encoded images and their labels under the default names of the features."""
    write_examples(
        path,
        [
            {"image/encoded": image, "image/class/label": label}
            for image, label in zip(images, labels)
        ],
    )


def store_tfds(folder, name, features, splits, **options):
    """Stores datasets as the splits of a TFDS dataset."""
    import tensorflow_datasets as tfds

    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets=splits,
        data_dir=str(folder),
        disable_shuffling=True,
        **options,
    )


def flip_bit(path, image):
    """Changes one bit of an image in a TFRecord file."""
    content = bytearray(path.read_bytes())
    content[content.index(image) + 200] ^= 1
    path.write_bytes(content)


def source_of(images, labels=None, class_names=("a",), **fields):
    """Returns a source of stored images, which are files or pixels. By default, all labels are
    0."""
    images = tf.constant(images)
    labels = tf.zeros(len(images), tf.int64) if labels is None else labels

    def read(index):
        return {"image": images[index], "label": labels[index]}

    return data.Source(read, len(images), class_names, **fields)


def read_all(source):
    """Returns all examples of a source that is read by index."""
    return [source.read(tf.constant(i, tf.int64)) for i in range(source.num_examples)]


def names_of(source):
    return [source.name_of(i) for i in range(source.num_examples)]


def sequential(source, lengths):
    """Returns a source that reads the same examples in order, from shards of these lengths.

    Each record is the index of an example. If the shards are longer than the source, the last
    records are missing.
    """
    lengths = np.array(lengths, np.int64)
    ends = np.cumsum(lengths)

    def open_shard(shard, skip):
        start = tf.gather(ends - lengths, shard)
        end = tf.minimum(tf.gather(ends, shard), source.num_examples)
        return tf.data.Dataset.range(start + skip, end).map(tf.as_string)

    def parse(record):
        return source.read(tf.strings.to_number(record, tf.int64))

    shards = Shards(lengths, open_shard, parse)
    return dataclasses.replace(source, read=None, shards=shards, num_examples=int(ends[-1]))


def by_index(source):
    return source


def in_order(source):
    """Returns a source that reads the same examples in order, from four shards."""
    return sequential(source, [len(part) for part in np.array_split(range(source.num_examples), 4)])


KINDS = pytest.mark.parametrize("kind", [by_index, in_order])


def numbered(n=23):
    """Returns a source of `n` images of 2x3 pixels in five classes.

    All pixels of an image equal its index, and 100 is white.
    """
    images = np.empty((n, 2, 3, 3), np.uint8)
    images[:] = np.arange(n)[:, None, None, None]
    names = [f"class {i}" for i in range(5)]
    return data.arrays(images, np.arange(n) % 5, names, max_value=100)


def numbers_of(images):
    """Returns the indices of the images of a batch of `numbered`."""
    return np.round((np.asarray(images)[:, 0, 0, 0] + 1) * 50).astype(int)


def take(dataset, count):
    """Returns the first batches of a dataset as lists of arrays."""
    return [[part.numpy() for part in batch] for batch in dataset.take(count)]


def assert_same_batches(batches, expected):
    assert len(batches) == len(expected) > 0
    for batch, expected_batch in zip(batches, expected):
        for part, expected_part in zip(batch, expected_batch):
            np.testing.assert_array_equal(part, expected_part)
